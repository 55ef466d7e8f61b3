"""Stages that compress: their laws, error feedback, what is linear, and the numbers of DRIVE."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from math import pi

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.wire import Codec, DecodeContext, EncodeContext, Stage, Wire, chain
from atoll.core.world import World
from atoll.stages.low_rank import LowRank
from atoll.stages.quantise import Quantise, Sign
from atoll.stages.rotate import Rotate
from atoll.stages.sparsify import RandomK, TopK
from atoll.testing import check_refusal, check_stage

SIMULATED = World(0)
SHAPES = {1: ((1,),), 7: ((7,),), 12: ((4, 3),), 1000: ((30, 20), (3, 3, 4, 11), (4,))}
LOSSY = [
    TopK(0.01), TopK(0.3, feedback=False), TopK(1.0), RandomK(0.1), RandomK(0.5, feedback=False), Sign(), Sign(False),
    Sign(False, "drive"), LowRank(2), LowRank(1, feedback=False), Rotate(), *(Quantise(bits) for bits in range(1, 17)),
]  # fmt: skip
LINEAR = [
    RandomK(0.3), RandomK(0.3, feedback=False), Rotate(), LowRank(2), LowRank(2, feedback=False),
    LowRank(1), LowRank(100),
]  # fmt: skip


@dataclass(frozen=True)
class Chained:
    """Several stages as one, to be checked as one."""

    parts: tuple[Stage, ...]

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        return chain(*self.parts)(wire)


def wire_of(size: int, dtype: str = "float32", l2: float | None = None) -> Wire:
    return replace(Wire.of(size, 7, dtype, shapes=SHAPES[size]), l2=l2)


def about(n: int, t: int = 0, world: World = SIMULATED) -> EncodeContext:
    return EncodeContext(np.ones(n, np.float32), world, t, np.arange(n))


def normal(n: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, size)).astype(np.float32)


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("stage", LOSSY, ids=str)
def test_laws(stage: Stage, size: int) -> None:
    check_stage(stage, wire_of(size))


@pytest.mark.parametrize("stage", LOSSY, ids=str)
def test_laws_hold_for_doubles_and_beside_a_weight(stage: Stage) -> None:
    check_stage(stage, wire_of(12, dtype="float64"))
    check_stage(Chained((atoll.Weigh(), stage)), wire_of(12))


@pytest.mark.parametrize("stage", [s for s in LOSSY if not getattr(s, "feedback", False)], ids=str)
def test_bounds_hold(stage: Stage) -> None:
    for size in SHAPES:
        assert check_stage(Chained((atoll.Clip(1.0), stage)), wire_of(size)).l2 is not None
    assert check_stage(Chained((atoll.Clip(1.0), atoll.Weigh(max_weight=20), stage)), wire_of(12)).l2 is not None


@pytest.mark.parametrize("stage", [TopK(), RandomK(), Sign(), LowRank()], ids=str)
def test_feedback_erases_the_bound(stage: Stage) -> None:
    assert stage(wire_of(12, l2=1.0))[0].l2 is None


def test_lossless_stages_are_lossless() -> None:
    check_stage(Rotate(), wire_of(1000), lossless=True)
    check_stage(Rotate(), wire_of(1000), seed=5, lossless=True)
    check_stage(Chained((Rotate(), atoll.Weigh())), wire_of(1000), lossless=True)
    check_stage(Chained((atoll.Weigh(), Rotate())), wire_of(12), lossless=True)
    check_stage(LowRank(100), wire_of(12), lossless=True)
    check_stage(TopK(1.0), wire_of(12), lossless=True)
    check_stage(RandomK(1.0, feedback=False), wire_of(12), lossless=True)


@pytest.mark.parametrize("stage", [TopK(0.1), TopK(0.001), RandomK(0.2), Sign(), LowRank(1)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_what_was_sent_and_what_is_left_are_what_came_in(stage: Stage, weighted: bool) -> None:
    wire = wire_of(12)
    _, codec = chain(atoll.Weigh(), stage)(wire) if weighted else chain(stage)(wire)
    came, sent, memory = np.zeros(12), np.zeros(12), {}
    for t in range(30):
        row = normal(1, 12, seed=t)
        weight = 1.0 + t % 3 if weighted else 1.0
        context = about(1, t)._replace(weight=np.array([weight], np.float32))
        out, memory, _ = codec.encode(row, memory, context)
        last = stage(atoll.Weigh()(wire)[0] if weighted else wire)[1]  # what the server adds up, before it divides
        heard, _, _ = last.decode(out[0], {}, DecodeContext(1, World(0), t))
        came += weight * row[0]
        sent += heard[:12]
        if weighted:
            assert heard[-1] == weight, "a weight travels untouched"
    left = memory["1.left" if weighted else "0.left"][0]
    assert np.allclose(sent + left, came, atol=1e-4)
    assert np.linalg.norm(sent - came) < 30 * np.sqrt(12), "feedback sends in the end what was left out"


def test_without_feedback_the_rest_is_forgotten() -> None:
    _, codec = TopK(0.25, feedback=False)(wire_of(12))
    _, memory, facts = codec.encode(normal(1, 12), {}, about(1))
    assert not memory
    assert set(facts) == {"error_share"}


def test_a_stage_that_does_not_say_that_it_remembers_fails_its_check() -> None:
    @dataclass(frozen=True)
    class Silent:
        def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
            after, codec = TopK()(wire)
            return after, codec._replace(remembers=False)

    with pytest.raises(AssertionError, match="remembers=True"):
        check_stage(Silent(), wire_of(12))


def test_top_k_by_hand() -> None:
    _, codec = TopK(0.5)(Wire.of(4, 1, shapes=((4,),)))
    row = np.array([[3, -1, 2, -4]], np.float32)
    out, memory, facts = codec.encode(row, {}, about(1))
    assert out.tolist() == [[3, 0, 0, -4]]
    assert memory["left"].tolist() == [[0, -1, 2, 0]]
    assert facts["error_share"] == pytest.approx(np.sqrt(5 / 30))
    out, memory, _ = codec.encode(row, memory, about(1))
    assert out.tolist() == [[0, 0, 4, -4]]
    assert memory["left"].tolist() == [[3, -2, 0, 0]]


def test_of_equals_the_first_are_sent() -> None:
    _, codec = TopK(0.5)(Wire.of(4, 1, shapes=((4,),)))
    out, _, _ = codec.encode(np.array([[1, -1, 1, 1]], np.float32), {}, about(1))
    assert out.tolist() == [[1, -1, 0, 0]]


@pytest.mark.parametrize("stage", LOSSY, ids=str)
def test_what_is_not_finite_counts_as_zero(stage: Stage) -> None:
    wire = wire_of(12)
    _, codec = stage(wire)
    bad, good = normal(3, 12), normal(3, 12)
    bad[0, 3], bad[1, 5], bad[2, 7] = np.nan, np.inf, -np.inf
    good[0, 3], good[1, 5], good[2, 7] = 0, 0, 0
    out, memory, _ = codec.encode(bad, {}, about(3))
    assert np.array_equal(out, codec.encode(good, {}, about(3)).x)
    assert all(np.isfinite(leaf).all() for leaf in memory.values())
    out, memory, _ = codec.encode(np.full((1, 12), 3.4e38, np.float32), {"left": np.full((1, 12), 3.4e38)}, about(1))
    assert np.isfinite(out).all()
    assert all(np.isfinite(leaf).all() for leaf in memory.values())


@pytest.mark.parametrize("stage", LINEAR, ids=str)
@given(st.integers(0, 2**31), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_the_sum_decodes_to_the_sum(stage: Stage, seed: int, t: int) -> None:
    wire = wire_of(1000)
    _, codec = stage(wire)
    rows = normal(5, 1000, seed)
    out, _, _ = codec.encode(rows, {}, about(5, t))
    together, _, _ = codec.decode(out.sum(0), {}, DecodeContext(5, World(0), t))
    alone = sum(codec.decode(row, {}, DecodeContext(1, World(0), t)).x for row in out)
    assert np.allclose(together, alone, atol=2e-4)
    again = codec.decode(codec.encode(together[None], {}, about(1, t))[0][0], {}, DecodeContext(1, World(0), t)).x
    scale = 1 / 0.3 if stage == RandomK(0.3, feedback=False) else 1.0
    assert np.allclose(again, scale * together, atol=2e-4), "what was projected stays where it is"


@pytest.mark.parametrize("stage", LINEAR, ids=str)
def test_common_randomness_is_public(stage: Stage) -> None:
    """Between real parties, too, it follows from the job's seed and the round: each side finds the same."""
    _, codec = stage(wire_of(1000))
    rows, world = normal(2, 1000), World.real(3)
    out, memory, _ = codec.encode(rows, {}, about(2, 5, world))
    assert np.array_equal(out, codec.encode(rows, {}, about(2, 5, World(3))).x), "a simulation draws the same"
    got, _, _ = codec.decode(out.sum(0), {}, DecodeContext(2, world, 5))
    if "left" in memory:
        assert np.allclose(got + memory["left"].sum(0), rows.sum(0), atol=1e-4)
    for another in (about(2, 6, world), about(2, 5, World.real(4))):
        other, _, _ = codec.encode(rows, {}, another)
        assert stage == LowRank(100) or not np.allclose(other, out), "another round, or seed, draws anew"


def test_random_k_without_feedback_is_right_on_average() -> None:
    _, codec = RandomK(0.25, feedback=False)(wire_of(12))
    row = normal(1, 12)
    sent = [codec.encode(row, {}, about(1, t)).x[0] for t in range(4000)]
    seen = [codec.decode(one, {}, DecodeContext(1, World(0), t)).x for t, one in enumerate(sent)]
    assert np.allclose(np.mean(seen, 0), row[0], atol=5 * 1.8 * np.abs(row).max() / np.sqrt(4000))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 16])
def test_quantise_is_right_on_average(bits: int) -> None:
    row, times = normal(1, 12)[0], 20_000
    many = np.tile(row, (1, times))
    _, codec = Quantise(bits)(Wire.of(many.size, 1))
    out = codec.encode(many, {}, about(1)).x.reshape(times, 12)
    step = np.abs(row).max() * (2 if bits == 1 else 1 / (2 ** (bits - 1) - 1))
    # Five standard errors of a coin's step, and what single precision does to the last level of 16 bits.
    assert np.allclose(out.mean(0, dtype=np.float64), row, atol=5 * 0.5 * step / np.sqrt(times) + 1e-6)
    away = np.abs(out - row).max()
    assert away <= step * 1.01
    assert len(np.unique(out)) <= 2**bits


def test_quantise_outside_simulations_draws_anew() -> None:
    _, codec = Quantise(4)(wire_of(1000))
    row = normal(1, 1000)
    one, two = (codec.encode(row, {}, about(1, world=World.real(0))).x for _ in range(2))
    assert not np.array_equal(one, two)
    assert np.abs(one - row).max() <= 1.01 * np.abs(row).max() / 7


def test_sign_by_hand() -> None:
    row = np.array([[3, -1, 0, -0.0, -6]], np.float32)
    out, _, _ = Sign(False)(Wire.of(5, 1))[1].encode(row, {}, about(1))
    assert out.tolist() == [[2, -2, 2, 2, -2]]
    out, _, _ = Sign(False, "drive")(Wire.of(5, 1))[1].encode(row, {}, about(1))
    assert np.allclose(np.abs(out), 46 / 10)


@pytest.mark.parametrize(("scale", "paper"), [("mean", 1 - 2 / pi), ("drive", pi / 2 - 1)])
@pytest.mark.parametrize("kind", ["normal", "log-normal"])
def test_drive(scale: str, paper: float, kind: str) -> None:
    """Vargaftik et al. 2021: the error over the length, squared, of the least-error and of the unbiased scale."""
    d, errors = 8192, []
    _, codec = chain(Rotate(), Sign(False, scale))(Wire.of(d, 1))
    for t in range(20):
        draw = np.random.default_rng(t)
        x = (draw.normal(size=(1, d)) if kind == "normal" else draw.lognormal(size=(1, d))).astype(np.float32)
        got, _, _ = codec.decode(codec.encode(x, {}, about(1, t)).x[0], {}, DecodeContext(1, World(0), t))
        errors.append(np.sum((got - x[0]) ** 2) / np.sum(x**2))
    assert np.mean(errors) == pytest.approx(paper, rel=0.02)


def test_drive_is_right_on_average() -> None:
    x = normal(1, 2048)
    _, codec = chain(Rotate(), Sign(False, "drive"))(Wire.of(2048, 1))
    sent = [codec.encode(x, {}, about(1, t)).x[0] for t in range(400)]
    seen = [codec.decode(one, {}, DecodeContext(1, World(0), t)).x for t, one in enumerate(sent)]
    off = np.linalg.norm(np.mean(seen, 0) - x[0]) / np.linalg.norm(x)
    assert off < 1.1 * np.sqrt((pi / 2 - 1) / 400), "errors of 400 rotations cancel like 1/√400"


def test_rotate_is_a_rotation() -> None:
    for size in (1, 2, 12, 200, 1000):
        after, codec = Rotate()(Wire.of(size, 1))
        out, _, _ = codec.encode(np.eye(size, dtype=np.float32), {}, about(size))
        assert np.allclose(out @ out.T, np.eye(size), atol=1e-5)
        assert after.row.size == 1 << (size - 1).bit_length()
    assert [Rotate()(Wire.of(n, 1))[0].row.size for n in (199_210, 4810, 2049)] == [49 * 4096, 19 * 256, 9 * 256]


def test_low_rank_by_its_definition() -> None:
    _, codec = LowRank(2)(wire_of(12))
    _, memory, _ = codec.encode(np.eye(12, dtype=np.float32), {}, about(12))
    kept = np.eye(12) - memory["left"]  # the projection, row by row
    assert np.allclose(kept @ kept, kept, atol=1e-5)
    assert np.allclose(kept, kept.T, atol=1e-5)
    assert np.trace(kept) == pytest.approx(2 * 3, abs=1e-4), "two directions of four, for each of three columns"


ENCODE = """
import hashlib, sys
import numpy as np
from threadpoolctl import threadpool_info
from atoll.core.wire import DecodeContext, EncodeContext, Wire
from atoll.core.world import World
from atoll.stages.low_rank import LowRank

_, codec = LowRank(60)(Wire.of(64 * 3000, 3, shapes=((64, 3000),)))
vectors = np.random.default_rng(0).standard_normal((3, 64 * 3000)).astype(np.float32)
sent = codec.encode(vectors, codec.start, EncodeContext(np.ones(3), World(0), 0, np.arange(3))).x
found = codec.decode(sent.sum(0), codec.start, DecodeContext(3, World(0), 0))[0]
threads = max(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
print(threads, hashlib.sha256(sent.tobytes() + found.tobytes()).hexdigest())
"""


def test_low_rank_has_the_same_bits_on_any_number_of_threads() -> None:
    """In the calling process NumPy has a thread for each core; a worker and a real party have one."""
    said = [
        subprocess.run(
            [sys.executable, "-c", ENCODE], env={**os.environ, "OPENBLAS_NUM_THREADS": threads}, capture_output=True,
            text=True, check=True,
        ).stdout.split()
        for threads in ("1", "4")
    ]  # fmt: skip
    (one, alone), (several, together) = said
    if int(several) < 2:
        pytest.skip("this machine has one core, or NumPy a library that takes no number of threads")
    assert one == "1"
    assert alone == together


def test_low_rank_sends_what_it_says() -> None:
    shapes = ((784, 200), (200,), (200, 200), (200,), (200, 10), (10,))
    after, _ = LowRank(64)(Wire.of(199_210, 10, shapes=shapes))
    assert after.row.size == 64 * 200 + 200 + 64 * 200 + 200 + 64 * 10 + 10
    conv, _ = LowRank(4)(Wire.of(5 * 5 * 32 * 64, 10, shapes=((5, 5, 32, 64),)))
    assert conv.row.size == 4 * 64, "800 × 64 is nearer to a square than 25 × 2,048"


@pytest.mark.parametrize(("make", "words"), [
    (lambda: TopK(0.0), "fraction=0.0"), (lambda: TopK(1.5), "at most 1"), (lambda: RandomK(-1.0), "fraction=-1.0"),
    (lambda: Quantise(0), "bits=0"), (lambda: Quantise(17), "from 1 to 16"), (lambda: Sign(scale="max"), "'max'"),
    (lambda: Sign(scale="drive"), "feedback=False"), (lambda: LowRank(0), "rank=0"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("stage", [TopK(), RandomK(), Sign(), LowRank(1)], ids=str)
@pytest.mark.parametrize("first", [RandomK(0.5), Rotate(), LowRank(1)], ids=str)
def test_what_was_left_out_of_other_numbers_is_not_added(first: Stage, stage: Stage) -> None:
    """Next round the numbers after a random basis are others: adding the rest to them would be noise."""
    check_refusal(lambda: chain(first, stage)(wire_of(12)), "put")


def test_top_k_then_quantise_writes_what_was_chosen() -> None:
    for size in SHAPES:
        check_stage(Chained((TopK(0.1), Quantise(8))), wire_of(size))
        check_stage(Chained((TopK(0.1, feedback=False), Quantise(2))), wire_of(size))
    check_stage(Chained((atoll.Clip(1.0), TopK(0.5, feedback=False), Quantise(5))), wire_of(1000))
    check_stage(Chained((atoll.Weigh(), TopK(0.5), Quantise(5))), wire_of(12))
    check_refusal(lambda: chain(TopK(), Quantise(1))(wire_of(12)), "bits=2")
