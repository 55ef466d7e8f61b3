"""Tree noise: increments add up to the nodes of a binary number."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.keys import rng
from atoll.core.tree import Array
from atoll.privacy import increments, prefix


def whole(level: int, index: int) -> Array:
    """Noise of whole numbers, so that sums are exact in any order."""
    return rng("tree", level, index).integers(-(10**6), 10**6, 5)


@given(st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_increments_add_up_to_the_prefix(t: int) -> None:
    assert np.array_equal(sum(increments(k, whole) for k in range(1, t + 1)), prefix(t, whole))


@given(st.integers(1, 2**40))
@settings(max_examples=200, deadline=None)
def test_the_nodes_of_a_prefix_cover_its_rounds_once(t: int) -> None:
    met: list[tuple[int, int]] = []

    def node(level: int, index: int) -> Array:
        met.append((index << level, index + 1 << level))
        return np.zeros(1)

    prefix(t, node)
    met.sort()
    assert met[0][0] == 0
    assert met[-1][1] == t
    assert all(a[1] == b[0] for a, b in pairwise(met))
    assert len(met) == t.bit_count() <= t.bit_length()


@given(st.integers(2, 2**40))
@settings(max_examples=200, deadline=None)
def test_an_increment_is_the_difference_of_two_prefixes(t: int) -> None:
    assert np.array_equal(increments(t, whole), prefix(t, whole) - prefix(t - 1, whole))


def test_one_round_meets_at_most_one_node_of_each_level() -> None:
    """This is what the accountant counts: rounds 1..n put a round into at most log2(n) + 1 nodes."""
    n = 100
    held: dict[int, set[tuple[int, int]]] = {t: set() for t in range(1, n + 1)}

    def node(level: int, index: int) -> Array:
        for t in range((index << level) + 1, min((index + 1 << level), n) + 1):
            held[t].add((level, index))
        return np.zeros(1)

    for t in range(1, n + 1):
        increments(t, node)
    assert max(len(nodes) for nodes in held.values()) == n.bit_length()
    assert all(len({level for level, _ in nodes}) == len(nodes) for nodes in held.values())


def test_by_hand() -> None:
    def name(level: int, index: int) -> Array:
        return np.array([10.0**level * (index + 1)])

    assert [float(increments(t, name)[0]) for t in range(1, 9)] == [1, 10 - 1, 3, 100 - 10 - 3, 5, 30 - 5, 7,
                                                                    1000 - 100 - 30 - 7]  # fmt: skip


def test_the_noise_of_a_prefix_has_the_variance_of_its_nodes() -> None:
    sigma, d = 3.0, 20_000

    def node(level: int, index: int) -> Array:
        return rng("variance", level, index).normal(0, sigma, d)

    total = np.zeros(d)
    for t in range(1, 33):
        total = total + increments(t, node)
        assert np.var(total) == pytest.approx(t.bit_count() * sigma**2, rel=0.06)
        assert t.bit_count() <= np.floor(np.log2(t)) + 1


def test_rounds_are_counted_from_one() -> None:
    for function in (increments, prefix):
        with pytest.raises(ValueError, match="counted from 1"):
            function(0, whole)
