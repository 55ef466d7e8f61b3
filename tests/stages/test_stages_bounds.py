"""Bounds: clipping, weights, the ring. What the wire proves holds for whatever comes in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.wire import Codec, DecodeContext, EncodeContext, Stage, Wire, chain
from atoll.core.world import World
from atoll.stages.ring import signed
from atoll.testing import check_refusal, check_stage

SIMULATED = World(0)


@dataclass(frozen=True)
class AfterClip:
    """A stage that needs a bound, with one."""

    stage: Stage

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        return chain(atoll.Clip(3.0), self.stage)(wire)


def about(n: int, t: int = 0, stage_state: dict[str, object] | None = None, world: World = SIMULATED) -> EncodeContext:
    return EncodeContext(np.ones(n, np.float32), world, t, np.arange(n), stage_state or {})


def test_removing_one_party_moves_the_clipped_sum_by_at_most_the_norm() -> None:
    """10,000 cases, among them NaN, infinity, huge, tiny and empty vectors."""
    generator = np.random.default_rng(0)
    for case in range(10_000):
        n, d, norm = int(generator.integers(1, 6)), int(generator.integers(0, 9)), float(10 ** generator.uniform(-3, 3))
        rows = (generator.normal(size=(n, d)) * 10 ** generator.uniform(-30, 30)).astype(np.float32)
        if d and case % 3 == 0:
            rows[generator.integers(n), generator.integers(d)] = (np.nan, np.inf, -np.inf, 3e38)[case % 4]
        _, codec = atoll.Clip(norm)(Wire.of(d, n))
        sent, _, _ = codec.encode(rows, {}, about(n))
        whole, without = sent.sum(0, dtype=np.float64), sent[1:].sum(0, dtype=np.float64)
        assert np.linalg.norm(whole - without) <= norm


@pytest.mark.parametrize("cohort", [7, 40, 400])
def test_adaptive_clipping_obeys_the_laws_of_a_stage(cohort: int) -> None:
    wire = check_stage(atoll.Clip(0.5, quantile=0.5), Wire.of(12, cohort))
    assert wire.l2 is not None
    assert wire.l2 >= 1


def _adapt(norm: float, quantile: float, lengths: np.ndarray, rounds: int = 250) -> float:
    _, codec = chain(atoll.Clip(norm, quantile=quantile), atoll.Average())(Wire.of(30, len(lengths)))
    generator = np.random.default_rng(1)
    server = codec.start
    for t in range(rounds):
        rows = generator.normal(size=(len(lengths), 30))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True) * lengths[:, None]).astype(np.float32)
        sent, _, _ = codec.encode(rows, {}, about(len(lengths), t, {name: server[name] for name in codec.stage_state}))
        _, server, _ = codec.decode(sent.sum(0), server, DecodeContext(len(lengths), World(0), t))
    return float(server["0.norm"])


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_the_norm_moves_to_the_quantile_from_below_and_from_above(quantile: float) -> None:
    lengths = np.linspace(0.5, 2.5, 101)
    for start in (0.01, 50.0):
        assert _adapt(start, quantile, lengths) == pytest.approx(np.quantile(lengths, quantile), rel=0.08)


def test_an_adaptive_norm_gives_back_short_vectors() -> None:
    _, codec = chain(atoll.Clip(9.0, quantile=0.5), atoll.Average())(Wire.of(5, 3))
    rows = np.arange(15, dtype=np.float32).reshape(3, 5) / 10
    sent, memory, facts = codec.encode(rows, {}, about(3, stage_state={"0.norm": np.float64(9.0)}))
    back, _, _ = codec.decode(sent.sum(0), codec.start, DecodeContext(3, World(0), 0))
    assert np.allclose(back, rows.mean(0), atol=1e-5)
    assert facts["clipped"].tolist() == [0, 0, 0]
    assert not memory


@given(st.integers(2, 24), st.sampled_from([1, 3, 12, 300]), st.integers(0, 2**30))
@settings(max_examples=40, deadline=None)
def test_a_ring_adds_exactly_and_decodes_to_within_a_step_each(bits: int, d: int, seed: int) -> None:
    n = 9
    stages = chain(atoll.Clip(2.0), atoll.Ring(bits, width=64))
    wire, codec = stages(Wire.of(d, n))
    rows = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    sent, _, _ = codec.encode(rows, {}, about(n))
    assert sent.dtype == np.uint64
    clipped, _, _ = atoll.Clip(2.0)(Wire.of(d, n))[1].encode(rows, {}, about(n))
    got, _, _ = codec.decode(np.add.reduce(sent, 0, dtype=np.uint64), {}, DecodeContext(n, World(0), 0))
    step = 2.0 / (2 ** (bits - 1) - 1)
    assert np.abs(got - clipped.sum(0)).max() <= n * step * (1 + 1e-3) + 1e-4
    assert np.linalg.norm(signed(sent).astype(float), axis=1).max() <= wire.l2


@pytest.mark.parametrize("ring", [atoll.Ring(), atoll.Ring(8), atoll.Ring(2), atoll.Ring(30, width=64)])
def test_a_ring_obeys_the_laws_of_a_stage(ring: atoll.Ring) -> None:
    check_stage(AfterClip(ring), Wire.of(12, 7))


def test_rounding_keeps_the_mean() -> None:
    _, codec = chain(atoll.Clip(1.0), atoll.Ring(4))(Wire.of(4, 3))
    row = np.array([[0.31, -0.17, 0.003, 0.0]], np.float32)
    total = np.zeros(4)
    for t in range(4000):
        sent, _, _ = codec.encode(row, {}, about(1, t))
        total += codec.decode(sent[0], {}, DecodeContext(1, World(0), t)).x
    assert np.allclose(total / 4000, row[0], atol=4 * (1 / 7) / 2 / np.sqrt(4000))


def test_sums_wrap_around_at_the_edge_and_not_before() -> None:
    """One more than half the ring is read as negative: this is why the wire checks that sums fit."""
    edge = np.uint32(2**31 - 1)
    assert signed(np.array([edge], np.uint32))[0] == 2**31 - 1
    assert signed(np.array([edge], np.uint32) + np.uint32(1))[0] == -(2**31)
    # 2^31 / (2^21 - 1) is just above 1,024 vectors: the fullest cohort that fits, and the next.
    fits = next(n for n in range(1100, 1, -1) if Wire.of(3, n).total.max_cohort * (2**21 - 1) < 2**31)
    chain(atoll.Clip(1.0), atoll.Ring(22))(Wire.of(3, fits))
    check_refusal(lambda: chain(atoll.Clip(1.0), atoll.Ring(22))(Wire.of(3, fits + 1)), "do not fit", "width=64")


def test_a_bounded_weight_keeps_a_bound() -> None:
    wire = check_stage(AfterClip(atoll.Weigh(60.0)), Wire.of(12, 7))
    assert wire.l2 == pytest.approx(np.sqrt(2) * 3.0)
    assert wire.total.hides_count
    check_stage(atoll.Weigh(max_weight=1e9), lossless=True)


def test_no_weight_counts_for_more_than_the_most() -> None:
    _, codec = chain(atoll.Clip(100.0), atoll.Weigh(max_weight=10))(Wire.of(1, 2))
    rows = np.array([[1.0], [5.0]], np.float32)
    sent, _, _ = codec.encode(rows, {}, EncodeContext(np.array([10.0, 1e6], np.float32), World(0), 0, np.arange(2)))
    back, _, _ = codec.decode(sent.sum(0), {}, DecodeContext(2, World(0), 0))
    assert back[0] == pytest.approx(3.0, rel=1e-5)


def test_outside_a_simulation_rounding_comes_from_the_operating_system() -> None:
    _, codec = chain(atoll.Clip(1.0), atoll.Ring(4))(Wire.of(200, 3))
    row = np.full((1, 200), 0.02, np.float32)
    first, _, _ = codec.encode(row, {}, about(1, world=World.real(0)))
    second, _, _ = codec.encode(row, {}, about(1, world=World.real(0)))
    assert not np.array_equal(first, second)
    assert set(np.unique(signed(first))) <= {0, 1}


def test_bad_settings_are_refused() -> None:
    for make, words in [
        (lambda: atoll.Ring(width=16), "2\\^32 or 2\\^64"), (lambda: atoll.Ring(bits=1), "from 2"),
        (lambda: atoll.Clip(1.0, quantile=1.0), "quantile"), (lambda: atoll.Clip(1.0, 0.5, rate=0.0), "rate"),
        (lambda: atoll.Weigh(max_weight=0), "positive"), (lambda: atoll.Average("votes"), "expected"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            make()
    check_refusal(lambda: chain(atoll.Ring())(Wire.of(3, 3)), "Ring()", "put Clip(norm) before it")
    check_refusal(lambda: chain(atoll.Clip(1.0), atoll.Ring(), atoll.Ring())(Wire.of(3, 3)), "keep one")
    check_refusal(lambda: chain(atoll.Clip(1.0), atoll.Weigh(), atoll.Ring())(Wire.of(3, 3)), "Weigh(max_weight=…)")


@pytest.mark.parametrize("stage", [atoll.TopK(0.5, feedback=False), atoll.Quantise(8), atoll.Rotate()], ids=str)
def test_what_an_adaptive_norm_learns_is_never_compressed_away(stage: Stage) -> None:
    """The two numbers beside the vector arrive as they were sent, whatever is done to the vector."""
    _, codec = chain(atoll.Clip(1.0, quantile=0.5), stage, atoll.Average())(Wire.of(64, 4, shapes=((8, 8),)))
    rows = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    rows[:3] *= 0.01  # three of four are short enough
    sent, _, _ = codec.encode(rows, {}, about(4, stage_state={"0.norm": np.float64(1.0)}))
    _, server, _ = codec.decode(sent.sum(0), codec.start, DecodeContext(4, World(0), 0))
    assert float(server["0.norm"]) == pytest.approx(np.exp(-0.2 * (0.75 - 0.5)), rel=1e-3)
