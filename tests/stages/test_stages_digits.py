"""Digits: sums of fixed-point numbers are exact, of either sign, for any cohort."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import atoll
from atoll.core.tree import Array
from atoll.core.wire import DecodeContext, EncodeContext, Wire
from atoll.core.world import World
from atoll.stages.digits import FRACTION, ROOM, WHOLE, Digits
from atoll.testing import check_refusal, check_stage


def added(rows: Array, cohort: int) -> Array:
    """Encode rows, add them up in the ring, and decode the sum."""
    wire, codec = Digits()(Wire.of(rows.shape[1], cohort, "float64"))
    n, world = len(rows), World()
    out = codec.encode(rows, {}, EncodeContext(np.ones(n), world, 0, np.arange(n))).x
    assert wire.ring is not None
    around_zero = out.view(np.int32).astype(np.int64)
    assert np.abs(around_zero).max() <= wire.ring.value_bound
    assert np.abs(around_zero.sum(0)).max() <= wire.ring.sum_bound < 2**ROOM - 1
    return codec.decode(np.add.reduce(out, 0, dtype=out.dtype), {}, DecodeContext(n, world, 0)).x


def test_it_keeps_the_laws_of_a_stage() -> None:
    check_stage(Digits(), Wire.of(12, 7, "float64"))


@pytest.mark.parametrize("cohort", [3, 1000, 10**6])
def test_a_sum_is_that_of_the_fixed_point_numbers(cohort: int) -> None:
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(50, 40)) * 2.0 ** draw.integers(-25, 60, (50, 40))
    rows[0, :4] = 0.0, -0.0, 2.0**WHOLE - 2.0**11, -(2.0**WHOLE) + 2.0**11  # the furthest floats that fit
    step = 2**FRACTION
    exact = [sum(Fraction(round(Fraction(x) * step), step) for x in column) for column in rows.T.tolist()]
    assert added(rows, cohort).tolist() == [float(x) for x in exact]


def test_counts_are_exact_and_reals_are_near() -> None:
    draw = np.random.default_rng(2)
    counts = draw.integers(-(10**12), 10**12, (100, 20)).astype(np.float64)
    assert np.array_equal(added(counts, 100), counts.sum(0))
    reals = draw.normal(size=(100, 20))
    assert np.abs(added(reals, 100) - reals.sum(0)).max() <= 100 * 2.0 ** -(FRACTION + 1)


@pytest.mark.parametrize("far", [2.0**WHOLE, -1e300, np.inf, np.nan])
def test_a_number_beyond_the_range_is_refused(far: float) -> None:
    check_refusal(lambda: added(np.array([[1.0, far]]), 5), f"{far:g}", "2^64")


def test_reals_only() -> None:
    ring = atoll.Clip(1.0)(Wire.of(4, 5))[0]
    ring = atoll.Ring()(ring)[0]
    check_refusal(lambda: Digits()(ring), "real")
