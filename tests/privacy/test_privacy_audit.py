"""Audits find noise that is too small, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from atoll.core.keys import rng
from atoll.core.tree import Array
from atoll.privacy import (
    Account,
    AddressedBits,
    PrivacyAudit,
    Spend,
    audit,
    discrete_gaussian,
    floating_point_attack,
    lower_bound,
)


def gaussian(sigma: float, *address: object) -> Callable[[bool, int], Array]:
    return lambda present, n: present + rng(*address, int(present)).normal(0, sigma, n)


@cache
def claim(sigma: float) -> float:
    epsilon = Account(Spend(sigma), 1e-5).tight(1)
    assert epsilon is not None
    return epsilon


def test_the_bound_by_hand() -> None:
    """All of 100 found and none of 100 false: Clopper and Pearson leave 0.025^(1/100) and its complement."""
    rate = 0.025**0.01
    assert lower_bound(100, 100, 0, 100, 0.0) == pytest.approx(log(rate / (1 - rate)))
    assert lower_bound(50, 100, 50, 100, 0.0) == 0.0
    assert lower_bound(0, 100, 100, 100, 0.0) == 0.0
    assert lower_bound(100, 100, 0, 100, 1.0) == 0.0


@given(st.integers(0, 200), st.integers(0, 200), st.floats(0.5, 0.999))
def test_the_bound_uses_exact_intervals_on_both_sides(hits: int, false_hits: int, confidence: float) -> None:
    true = binomtest(hits, 200).proportion_ci(confidence, "exact").low
    false = binomtest(false_hits, 200).proportion_ci(confidence, "exact").high
    ratios = [(true - 1e-3) / false, (1 - false - 1e-3) / (1 - true)]
    assert lower_bound(hits, 200, false_hits, 200, 1e-3, confidence) == pytest.approx(
        max(0.0, *(log(r) for r in ratios if r > 0), 0.0)
    )


def test_halved_noise_is_caught_where_the_audit_has_power() -> None:
    assert audit(gaussian(1.0, "halved"), claim(2.0), 1e-5, samples=20_000).caught
    assert audit(gaussian(0.25, "quartered"), claim(1.0), 1e-5, samples=20_000).caught
    found = audit(gaussian(0.5, "halved at one"), claim(1.0), 1e-5, samples=10**6)
    assert found.caught
    assert found.lower < claim(0.5)


def test_honest_noise_raises_no_alarm() -> None:
    for sigma in (0.5, 1.0, 2.0):
        for run in range(20):
            found = audit(gaussian(sigma, "honest", sigma, run), claim(sigma), 1e-5, samples=20_000)
            assert not found.caught
            assert found.lower > 0


def test_the_bound_comes_near_the_truth() -> None:
    """Not all of the way: where δ = 1e-5 makes itself felt, a million samples hold only tens of hits."""
    for sigma in (1.0, 2.0):
        assert 0.6 * claim(sigma) < audit(gaussian(sigma, "near"), claim(sigma), 1e-5).lower < claim(sigma)


def test_integers_are_audited_too() -> None:
    def scaled(sigma: float) -> Callable[[bool, int], Array]:
        return lambda present, n: 64 * present + discrete_gaussian(64 * sigma, n, AddressedBits("audit", int(present)))

    assert not audit(scaled(2.0), claim(2.0), 1e-5, samples=100_000).caught
    assert audit(scaled(1.0), claim(2.0), 1e-5, samples=100_000).caught


def test_no_noise_at_all_is_caught_and_constants_are_not() -> None:
    assert audit(lambda present, n: np.full(n, float(present)), 4.0, 1e-5, samples=20_000).caught
    assert audit(lambda present, n: np.zeros(n), 4.0, 1e-5, samples=20_000) == PrivacyAudit(0.0, 4.0)


def test_what_cannot_be_audited_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 100"):
        audit(gaussian(1.0, 0), 1.0, 1e-5, samples=10)
    with pytest.raises(ValueError, match="was asked for 1000"):
        audit(lambda present, n: np.zeros(3), 1.0, 1e-5, samples=1000)
    with pytest.raises(ValueError, match="hits=3 of 2"):
        lower_bound(3, 2, 0, 2, 0.0)
    with pytest.raises(ValueError, match="confidence=1"):
        lower_bound(1, 2, 0, 2, 0.0, 1)


def textbook_laplace(x: float, n: int) -> Array:
    """Inversion of a uniform float, as textbooks print it, for ε = 1 and sensitivity 1."""
    u = rng("laplace", int(x)).random(n) - 0.5
    return x - np.sign(u) * np.log(1 - 2 * np.abs(u))


def textbook_reaches(x: float) -> Callable[[Array], Array]:
    """Whether any of the 2^52 numbers 1 − 2|u| gives exactly this output: all near the one that it came from."""

    def possible(y: Array) -> Array:
        found = np.zeros(y.shape, bool)
        middle = np.rint(np.exp(-np.abs(y - x)) * 2.0**52)
        for step in range(-40, 41):
            u = np.clip(middle + step, 1, 2.0**52) * 2.0**-52
            found |= (x + np.log(u) == y) | (x - np.log(u) == y)
        return found

    return possible


def test_the_floating_point_attack_breaks_textbook_noise() -> None:
    outputs = textbook_laplace(0.0, 20_000)
    assert floating_point_attack(outputs, textbook_reaches(0.0)) == 0.0
    assert floating_point_attack(outputs, textbook_reaches(1.0)) > 0.75


def test_the_floating_point_attack_finds_nothing_in_integers() -> None:
    outputs = discrete_gaussian(10.0, 100_000, AddressedBits("attack"))
    reachable = np.arange(-136, 137) + 1  # every number within 13.5 σ of the neighbour has its threshold

    assert floating_point_attack(outputs, lambda y: np.isin(y, reachable)) == 0.0
    assert floating_point_attack(outputs + 0.5, lambda y: np.isin(y, reachable)) == 1.0
    with pytest.raises(ValueError, match="one answer for each"):
        floating_point_attack(outputs, lambda y: y[:3] > 0)
