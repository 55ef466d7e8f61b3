"""The discrete Gaussian against its exact probabilities, with and without secret bits."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, ks_2samp

from atoll.core.keys import rng
from atoll.core.tree import Array
from atoll.privacy import AddressedBits, Bits, SecureBits, discrete_gaussian
from atoll.privacy.discrete import _accept, _coarse, _invert, _reach, _signed_table, _Table, _table, _weights, sum_gap


def pmf(sigma: float, reach: int) -> Array:
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def p_value(draws: Array, sigma: float, least: float = 20) -> float:
    """Chi-square of whole numbers, neighbours pooled until every cell expects enough."""
    reach = max(int(14 * sigma) + 2, int(np.abs(draws).max()))
    expected = len(draws) * pmf(sigma, reach)
    seen = np.bincount(draws + reach, minlength=2 * reach + 1)
    cell = np.minimum((np.cumsum(expected) - expected / 2) // least, (len(draws) - 1) // least).astype(int)
    wanted, got = (np.bincount(cell, weights=w) for w in (expected, seen))
    full = wanted > least / 4
    wanted, got = np.append(wanted[full], wanted[~full].sum()), np.append(got[full], got[~full].sum())
    if wanted[-1] < least / 4:
        wanted, got = np.append(wanted[:-2], wanted[-2:].sum()), np.append(got[:-2], got[-2:].sum())
    return float(chi2.sf(np.sum((got - wanted) ** 2 / wanted), len(wanted) - 1))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 10.0, 1000.0])
def test_draws_follow_the_exact_probabilities(sigma: float) -> None:
    assert p_value(discrete_gaussian(sigma, 10**6, AddressedBits("chi", sigma * 2)), sigma) > 1e-3


@pytest.mark.parametrize("sigma", [0.5, 1.0, 10.0, 1000.0])
def test_secret_draws_follow_them_too(sigma: float) -> None:
    assert p_value(discrete_gaussian(sigma, 10**5, SecureBits()), sigma) > 1e-7  # secret bits differ in every run


@pytest.mark.parametrize("sigma", [2049.0, 5000.5, 65536.0])
def test_wide_draws_follow_them_too(sigma: float) -> None:
    assert p_value(discrete_gaussian(sigma, 10**6, AddressedBits("wide", sigma * 2)), sigma, 200) > 1e-3


def test_zero_has_one_sign_in_wide_draws() -> None:
    zeros = np.count_nonzero(discrete_gaussian(2049.0, 10**6, AddressedBits("zero")) == 0)
    expected = 10**6 / (2049 * np.sqrt(2 * np.pi))
    assert abs(zeros - expected) < 5 * np.sqrt(expected)


def test_wide_draws_fill_their_lowest_bits_evenly() -> None:
    draws = discrete_gaussian(2.0**40, 100_000, AddressedBits("low"))
    seen = np.bincount(draws & 255, minlength=256)
    assert chi2.sf(np.sum((seen - draws.size / 256) ** 2) / (draws.size / 256), 255) > 1e-3


def test_the_chi_square_would_notice() -> None:
    for sigma, wrong in ((0.5, 0.505), (1.0, 1.005), (10.0, 10.2), (1000.0, 1020.0)):
        assert p_value(discrete_gaussian(wrong, 10**6, AddressedBits("wrong", 1)), sigma) < 1e-6
    rounded = np.rint(rng("rounded").normal(0, 1.0, 10**6)).astype(np.int64)
    assert p_value(rounded, 1.0) < 1e-6


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.5, 300.0, 3000.0, 1e6, 2.0**45])
def test_mean_variance_symmetry(sigma: float) -> None:
    n = 400_000
    draws = discrete_gaussian(sigma, n, AddressedBits("moments")).astype(float)
    k = np.arange(-20, 21)
    variance = float(np.sum(k**2 * pmf(sigma, 20))) if sigma <= 1 else sigma**2
    assert abs(draws.mean()) < 5 * np.sqrt(variance / n)
    assert abs(draws.var() - variance) < 5 * (draws**2).std() / np.sqrt(n)
    assert abs(np.sum(draws > 0) - np.sum(draws < 0)) < 5 * np.sqrt(n)


@pytest.mark.parametrize("sigma", [2.0**-10, 0.05, 0.5, 1.0, 3.7, 41.0])
def test_thresholds_are_the_distribution_to_a_hundred_bits(sigma: float) -> None:
    """The whole total variation of a table, computed with 120 digits and no code of ours."""
    table = _signed_table(sigma)
    ends = [0, *((int(h) << 64) + int(w) for h, w in zip(table.high, table.low, strict=True)), 1 << 128]
    with mpmath.workdps(120):
        exact = mpmath.mpf(sigma)
        beyond = _reach(sigma) + 60
        weights = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * exact**2)) for k in range(-beyond, beyond + 1)}
        total = mpmath.fsum(weights.values())
        drawn = {i - _reach(sigma): mpmath.mpf(b - a) / 2**128 for i, (a, b) in enumerate(pairwise(ends))}
        distance = mpmath.fsum(abs(drawn.get(k, 0) - w / total) for k, w in weights.items()) / 2
        assert distance < mpmath.mpf(2) ** -110


def test_weights_of_the_widest_table_are_exact_enough() -> None:
    weights = _weights(2048.0)
    with mpmath.workdps(120):
        for k in (0, 1, 2, 1000, 20_000, len(weights) - 1):
            exact = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(2048) ** 2)) * mpmath.mpf(2) ** 256
            assert abs(weights[k] - exact) < 2**32


class Script:
    """Bits that were written down before."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    def bytes(self, n: int) -> bytes:
        part = self.parts.pop(0) if n else b""
        assert len(part) == n
        return part


@given(st.integers(0, 2**128 - 1), st.sampled_from([0.5, 2.0, 30.0]))
@settings(max_examples=300, deadline=None)
def test_inversion_is_a_comparison_of_128_bits(u: int, sigma: float) -> None:
    assert_inverts(_signed_table(sigma), u)


def assert_inverts(table: _Table, u: int) -> None:
    """Feed one uniform number digit by digit: 16 bits, 48 more, 64 more, each only where it is needed."""
    ends = [(int(h) << 64) + int(w) for h, w in zip(table.high, table.low, strict=True)]
    head, middle, low = u >> 112, u >> 64 & (1 << 48) - 1, u & (1 << 64) - 1
    script = Script(head.to_bytes(2, "little"), (middle << 16).to_bytes(8, "little"), low.to_bytes(8, "little"))
    assert int(_invert(table, 1, script)[0]) == bisect_right(ends, u)


@pytest.mark.parametrize("sigma", [2.0**-10, 0.5, 2.0, 30.0])
def test_inversion_is_right_at_every_threshold(sigma: float) -> None:
    table = _signed_table(sigma)
    for high, low in zip(table.high, table.low, strict=True):
        end = (int(high) << 64) + int(low)
        for u in (end - 1, end, end + 1, int(high) << 64, (int(high) + 1 << 64) - 1):
            assert_inverts(table, min(max(u, 0), 2**128 - 1))
    for u in (0, 1, 2**127 - 1, 2**127, 2**128 - 1):
        assert_inverts(table, u)


def test_inversion_is_right_when_a_threshold_lies_on_the_edge_of_a_cell() -> None:
    for beyond in (-1, 0, 1, 5):
        end = (1 << 127) + beyond
        table = _table([end, (1 << 128) - end])
        for u in (end - 1, end, end + 1, 1 << 127, (1 << 127) - 1):
            assert_inverts(table, u)


def test_inversion_is_right_when_thresholds_share_their_high_word() -> None:
    high = np.array([5 << 48, 5 << 48, 7 << 48 | 9], np.uint64)
    low = np.array([10, 20, 0], np.uint64)
    table = _Table(high, low, np.full(1 << 16, np.iinfo(np.int32).min, np.int32))
    for end in ((5 << 112) + 10, (5 << 112) + 20, ((7 << 48 | 9) << 64)):
        for u in (end - 1, end, end + 1):
            assert_inverts(table, u)


@pytest.mark.parametrize("sigma", [2049.0, 4096.0, 5000.5, 1e9])
def test_a_cell_is_kept_for_sure_only_where_the_exact_draw_agrees(sigma: float) -> None:
    coarse = _coarse(sigma)
    widest = (1 << coarse.shift) - 1
    for h in (0, 1, 500, 5000, len(coarse.sure) - 1):
        x = Fraction(widest * (2 * (h << coarse.shift) + widest)) / (2 * Fraction(sigma) ** 2)
        with mpmath.workdps(60):
            chance = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)
            assert mpmath.mpf(int(coarse.sure[h])) / 2**64 <= chance
            # and the sure part is most of it, or draws would be slow
            assert chance - mpmath.mpf(int(coarse.sure[h])) / 2**64 < 0.02


def test_a_draw_is_accepted_below_its_chance() -> None:
    with mpmath.workdps(80):
        chance = int(mpmath.exp(-mpmath.mpf(3) / 7) * mpmath.mpf(2) ** 128)
    for u, kept in ((chance - 1, True), (chance, False), (0, True), (2**128 - 1, False)):
        assert _accept(Fraction(3, 7), u >> 64, Script((u & 2**64 - 1).to_bytes(8, "little"))) is kept
    assert _accept(Fraction(0), 2**64 - 1, Script(b"\xff" * 8))


@pytest.mark.parametrize("sigma", [1.0, 1000.0, 5000.0])
def test_equal_addresses_draw_equal_numbers(sigma: float) -> None:
    first, again, other = (discrete_gaussian(sigma, 1000, AddressedBits(*at)) for at in ((1, "a"), (1, "a"), (1, "b")))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    bits = AddressedBits(1, "a")
    assert not np.array_equal(discrete_gaussian(sigma, 1000, bits), discrete_gaussian(sigma, 1000, bits))


def test_shapes_and_types() -> None:
    bits: Bits = AddressedBits(0)
    assert discrete_gaussian(2.0, (3, 4), bits).shape == (3, 4)
    assert discrete_gaussian(3000.0, (3, 4), bits).shape == (3, 4)
    assert discrete_gaussian(2.0, 0, bits).shape == (0,)
    assert discrete_gaussian(3000.0, (0, 4), bits).shape == (0, 4)
    assert discrete_gaussian(2.0, 5, bits).dtype == np.int64


@pytest.mark.parametrize("sigma", [0.0, -1.0, 1e-4, 2.0**51, float("inf"), float("nan")])
def test_a_sigma_out_of_range_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="2\\^-10 to 2\\^50"):
        discrete_gaussian(sigma, 1, SecureBits())


def test_secret_bits_never_repeat_and_keep_nothing() -> None:
    bits = SecureBits()
    assert len({bits.bytes(16) for _ in range(1000)}) == 1000
    assert vars(bits) == {}
    assert [len(bits.bytes(n)) for n in (0, 1, 7, 1000)] == [0, 1, 7, 1000]
    seen = np.bincount(np.frombuffer(bits.bytes(256_000), np.uint8), minlength=256)
    assert chi2.sf(np.sum((seen - 1000) ** 2) / 1000, 255) > 1e-7


@pytest.mark.parametrize("parties", [2, 3, 10])
def test_a_sum_of_shares_is_as_near_as_promised(parties: int) -> None:
    """Exact convolution in the middle of the distribution, where floats can still tell."""
    sigma = 0.6
    share = pmf(sigma, 60)
    total = share
    for _ in range(parties - 1):
        total = np.convolve(total, share)
    middle = len(total) // 2
    at = np.arange(-4, 5)
    ratio = np.log(total[middle + at] / pmf(sigma * parties**0.5, middle)[middle + at])
    assert np.abs(ratio).max() <= sum_gap(sigma, parties)
    assert np.abs(ratio).max() > 1e-6  # there is something to bound
    assert sum_gap(3.0, 10**4) < 1e-30


@pytest.mark.parametrize("sigma", [0.5, 10.0, 1000.0])
def test_another_exact_sampler_agrees(sigma: float) -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    other = np.array(dp.m.make_gaussian(*space, scale=sigma)([0] * 20_000))
    assert p_value(other, sigma) > 1e-7
    assert ks_2samp(other, discrete_gaussian(sigma, 20_000, AddressedBits("other"))).pvalue > 1e-7
