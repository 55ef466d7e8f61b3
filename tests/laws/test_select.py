"""Cohorts: sizes, uniformity, Poisson by chi-square, odds by size, addresses of randomness."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import atoll
from atoll.core.keys import draw, rng, uniform
from atoll.core.method import History, Population
from atoll.core.world import World
from atoll.testing import check_refusal


def picks(select: object, n: int, rounds: int, seed: int = 0, sizes: object = None) -> list[np.ndarray]:
    population = Population(np.ones(n) if sizes is None else sizes)  # type: ignore[arg-type]
    return [select.pick(t, population, History(), {}, World(seed)).cohort for t in range(rounds)]  # type: ignore[attr-defined]


def test_uniform_asks_a_fraction_and_at_least_one() -> None:
    assert {len(c) for c in picks(atoll.Uniform(0.1), 100, 50)} == {10}
    assert {len(c) for c in picks(atoll.Uniform(0.0), 100, 5)} == {1}
    assert {len(c) for c in picks(atoll.Uniform(1.0), 7, 5)} == {7}


@pytest.mark.parametrize("select", [atoll.Uniform(0.1), atoll.Count(10), atoll.Poisson(0.1)])
def test_every_party_is_as_likely(select: object) -> None:
    counts = np.bincount(np.concatenate(picks(select, 100, 3000)), minlength=100)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_poisson_cohort_sizes_pass_a_chi_square_test() -> None:
    sizes = np.array([len(c) for c in picks(atoll.Poisson(0.1), 100, 4000)])
    edges = np.array([-1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 100])
    expected = np.diff(stats.binom.cdf(edges, 100, 0.1)) * len(sizes)
    observed = np.histogram(sizes, edges + 0.5)[0]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_poisson_parties_are_independent() -> None:
    there = np.zeros((4000, 12))
    for t, cohort in enumerate(picks(atoll.Poisson(0.3), 12, 4000)):
        there[t, cohort] = 1
    correlation = np.corrcoef(there.T) - np.eye(12)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


def test_by_size_prefers_the_large() -> None:
    sizes = np.array([1.0] * 50 + [9.0] * 50)
    chosen = np.concatenate(picks(atoll.BySize(1), 100, 4000, sizes=sizes))
    assert stats.binomtest(int((chosen >= 50).sum()), 4000, 0.9).pvalue > 1e-3


def test_a_million_parties_cost_only_their_cohort() -> None:
    cohort = picks(atoll.Count(1000), 1_000_000, 1)[0]
    assert len(np.unique(cohort)) == 1000


def test_cohorts_depend_on_seed_and_round_only() -> None:
    again = [c.tolist() for c in picks(atoll.Uniform(0.2), 50, 5)]
    assert [c.tolist() for c in picks(atoll.Uniform(0.2), 50, 5)] == again
    assert [c.tolist() for c in picks(atoll.Uniform(0.2), 50, 5, seed=1)] != again
    assert len({tuple(c) for c in again}) == 5


@given(st.lists(st.integers(-(2**62), 2**62) | st.text(max_size=5), min_size=1, max_size=4))
@settings(deadline=None)
def test_addresses_are_functions(address: list[object]) -> None:
    assert draw(*address) == draw(*address)
    assert draw(*address) != draw(*address, 0)
    assert 0 <= uniform(*address)[0] < 1


def test_addressed_bits_look_uniform() -> None:
    draws = uniform(0, "test", np.arange(100_000))
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    bits = np.unpackbits(draw(0, "bits", np.arange(20_000)).view(np.uint8)).reshape(-1, 64)
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(20_000)
    assert rng(0, "a").integers(2**60) != rng(0, "b").integers(2**60)


def test_diurnal_swings_for_each_party_and_evens_out_over_the_world() -> None:
    """A party's chance is 0.25 − 0.15·cos: its first Fourier coefficient over a day has length 0.15."""
    world, days, parties = atoll.Diurnal(0.1, 0.4, 24), 200, 500
    there = np.zeros((days, 24, parties))
    for t in range(days * 24):
        there[t // 24, t % 24, world.online(t, parties, 0)] = 1
    often = there.mean(0)
    swing = 2 * np.fft.fft(often, axis=0)[1] / 24
    assert np.abs(np.abs(swing).mean() - 0.15) < 0.005
    assert stats.kstest(np.angle(swing) / (2 * np.pi) + 0.5, "uniform").pvalue > 1e-3  # everybody lives somewhere
    assert np.abs(often.mean(1) - 0.25).max() < 0.03


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: atoll.BySize(0), "number=0: ask at least one"),
        (lambda: atoll.BySize(-3), "number=-3: ask at least one"),
        (lambda: atoll.Diurnal(period=0), "period=0: .* at least one round"),
    ],
)
def test_what_selects_nobody_or_never_is_refused_when_it_is_made(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_trace_is_read_and_its_mistakes_named(tmp_path: object) -> None:
    file = tmp_path / "trace.csv"  # type: ignore[operator]
    file.write_text("party,first,last\n0,1,3\n2,2,2\n")
    trace = atoll.Trace(str(file))
    assert [trace.online(t, 5, 0).tolist() for t in range(4)] == [[0], [0, 2], [0], []]  # type: ignore[union-attr]
    bad = tmp_path / "bad.csv"  # type: ignore[operator]
    bad.write_text("party,first,last\n0,1,3\n2,two,2\n")
    with pytest.raises(ValueError, match="line 3"):
        atoll.Trace(str(bad)).online(0, 5, 0)


@pytest.mark.parametrize("make", [atoll.Count, atoll.BySize, atoll.RoundRobin, atoll.LeastServed, atoll.Partition])
def test_more_parties_than_there_are_is_refused_at_assembly(make: Callable[[int], object]) -> None:
    data = atoll.data.load("wine").split(4, seed=0)

    def assembly(number: int) -> object:
        return atoll.assemble(atoll.Job(atoll.FedSGD(atoll.models.softmax()), make(number)), data)

    check_refusal(lambda: assembly(99), "select: number=99: there are only 4 parties", "All()")
    assert assembly(4)
