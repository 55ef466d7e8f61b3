"""The sparse graph: published parameters, a ring that nobody picks, and what is saved."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.crypto.graph import Sparse, around, complete, harary, likely_answers, parameters, ring, secure_threshold

C, S = "curious", "semi-malicious"


@pytest.mark.parametrize(("n", "adversarial", "dropout", "server", "expected"), [
    (100, 0.45, 0.45, C, (92, 46)), (1000, 0.33, 0.33, C, (286, 150)), (100, 0.05, 0.33, C, (28, 6)),
    (1000, 0.05, 0.33, C, (72, 24)), (10000, 0.05, 0.33, C, (86, 29)), (10, 0.33, 0.33, C, (8, 4)),
    (100, 0.3, 0.3, S, (92, 62)), (100, 0.05, 0.33, S, (72, 39)), (1000, 0.05, 0.33, S, (398, 223)),
])  # fmt: skip
def test_published_parameters(
    n: int, adversarial: float, dropout: float, server: str, expected: tuple[int, int]
) -> None:
    assert parameters(n, Sparse(adversarial, dropout, server)) == expected


@given(st.integers(5, 80), st.floats(0, 0.4), st.floats(0, 0.25), st.data())
@settings(max_examples=60, deadline=None)
def test_thresholds_are_what_the_tails_say(n: int, adversarial: float, dropout: float, data: st.DataObject) -> None:
    """Against tails summed in fractions, term by term."""
    k = 2 * data.draw(st.integers(1, (n - 2) // 2))
    sparse = Sparse(adversarial, dropout, C)
    bad, _, alive = sparse.counts(n)

    def above(x: int, marked: int) -> Fraction:
        terms = sum(comb(marked, i) * comb(n - marked, k - i) for i in range(x + 1, k + 1))
        return Fraction(terms, comb(n, k))

    t = secure_threshold(n, k, sparse)
    if t is not None:
        assert above(t - 1, bad) <= Fraction(1, n * 2**41)
        assert t == 2 or above(t - 2, bad) > Fraction(1, n * 2**41)
    enough = likely_answers(n, k, sparse)
    assert 1 - above(enough - 1, alive) <= Fraction(1, n * 2**20)
    assert enough == k or 1 - above(enough, alive) > Fraction(1, n * 2**20)


@given(st.sets(st.integers(0, 2**32 - 1), min_size=4, max_size=40), st.binary(min_size=32, max_size=32), st.data())
@settings(max_examples=60, deadline=None)
def test_the_graph_is_regular_mutual_and_connected(ids: set[int], seed: bytes, data: st.DataObject) -> None:
    k = 2 * data.draw(st.integers(1, (len(ids) - 1) // 2))
    near = harary(ids, k, seed)
    assert set(near) == ids
    assert all(len(set(js)) == k and i not in js and js == tuple(sorted(js)) for i, js in near.items())
    assert all(i in near[j] for i, js in near.items() for j in js)
    seen, todo = set(), [min(ids)]
    while todo:
        i = todo.pop()
        if i not in seen:
            seen.add(i)
            todo += near[i]
    assert seen == ids
    assert all(around(i, ring(ids, seed), k) == near[i] for i in ids)


def test_the_ring_depends_on_the_seed_only() -> None:
    assert ring(range(50), b"a") == ring(reversed(range(50)), b"a") != ring(range(50), b"b")


def test_places_on_the_ring_are_even() -> None:
    """A party is as likely in any place as in any other: 2,000 fixed seeds, 10 places, chi-square at 10^-3."""
    counts = [0] * 10
    for i in range(2000):
        counts[ring(range(10), i.to_bytes(4, "big")).index(0)] += 1
    assert sum((c - 200) ** 2 / 200 for c in counts) < 27.88


def test_complete() -> None:
    assert complete([3, 1, 2]) == {1: (2, 3), 2: (1, 3), 3: (1, 2)}
