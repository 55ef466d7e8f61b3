"""Noise: its scale comes from the bound, it lands where it is said to, and what would make it a lie is refused."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.effects import Ask
from atoll.core.party import Group, Handler, Memory
from atoll.core.tree import Tree
from atoll.core.wire import Codec, DecodeContext, EncodeContext, Setting, Stage, Wire, chain
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.runtimes.local.worker import Chunk, Worker
from atoll.stages.noise import add_noise
from atoll.stages.ring import signed
from atoll.testing import check_part, check_refusal

SIMULATED = World(0)
D, N = 4000, 25
EXPECTED = atoll.Average("expected")


def noise_of(*stages: Stage, n: int = N, d: int = D, world: World = SIMULATED) -> tuple[np.ndarray, Wire, Codec]:
    """Return what comes out of zero vectors: noise alone, before any mean."""
    wire, codec = chain(*stages)(Wire.of(d, n))
    zeros, weight = np.zeros((n, d), np.float32), np.ones(n, np.float32)
    sent, _, _ = codec.encode(zeros, {}, EncodeContext(weight, world, 0, np.arange(n)))
    total, _, _ = codec.decode(np.add.reduce(sent, 0, dtype=sent.dtype), codec.start, DecodeContext(n, world, 0))
    return total, wire, codec


@pytest.mark.parametrize("world", [World(0), World.real(0)], ids=["simulated", "operating system"])
@pytest.mark.parametrize("bound", [0.3, 5.0])
def test_the_noise_of_a_mean_is_multiplier_times_bound_over_the_cohort(bound: float, world: World) -> None:
    z = 1.7
    central, wire, _ = noise_of(atoll.Clip(bound), EXPECTED, atoll.Gaussian(z), world=world)
    assert np.std(central) == pytest.approx(z * bound / N, rel=0.05)
    assert [(e.where, e.multiplier) for e in wire.noise] == [("central", z)]
    assert np.linalg.norm(central) == pytest.approx(z * bound * np.sqrt(D) / N, rel=0.05)
    local, wire, _ = noise_of(atoll.Clip(bound), EXPECTED, atoll.Gaussian(z, "local"), world=world)
    assert np.std(local) == pytest.approx(z * bound / np.sqrt(N), rel=0.05)
    assert wire.l2 is None
    stages = (atoll.Clip(bound), EXPECTED, atoll.Ring(), atoll.Gaussian(z, "distributed", honest=1.0))
    shared, wire, _ = noise_of(*stages, world=world)
    assert np.std(shared) == pytest.approx(z * bound / N, rel=0.05)
    assert wire.total.min_cohort == N


class Rows(Handler):
    """Gives every party the vector that it has."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    split, group_size = "train", 10**6

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        return {"vector": self.rows[group.me]}, {}


def summed(rows: np.ndarray, *stages: Stage) -> np.ndarray:
    """Add up rows as Sum() asks a worker to."""
    wire, _ = chain(*stages)(Wire.of(rows.shape[1], len(rows)))
    conversation = atoll.Sum().gather(wire, Setting("train", World(0)))(np.arange(len(rows)), {"t": 0}, None)
    ask = conversation.send(None)
    conversation.close()
    assert isinstance(ask, Ask)
    silos = Silos(np.zeros((0, 1)), np.zeros(0), np.zeros(len(rows) + 1, np.int64))
    worker = Worker({ask.what: Rows(rows)}, {"train": silos}, World(0))
    return worker.answer(Chunk(ask.what, 0, ask.to, None, ask.fold, wide=ask.wide), {"t": 0}).sums["vector"]


@pytest.mark.parametrize("noise", [atoll.Gaussian(1.0), atoll.TreeNoise(1.0)])
def test_one_vector_among_thousands_moves_a_sum_under_noise_by_itself_and_no_more(noise: Stage) -> None:
    """Added in single precision, 8,192 vectors make a sum whose last digit is larger than a bound of noise may miss."""
    many = np.ones((8192, 3), np.float32)
    one = np.array([[0.0004, 0.0006, -0.0009]], np.float32)
    stages = (atoll.Clip(2.0), EXPECTED, noise)
    moved = summed(np.concatenate([many, one]), *stages) - summed(many, *stages)
    assert np.abs(moved - one[0]).max() < 1e-11
    plain = summed(np.concatenate([many, one])) - summed(many)
    assert plain.dtype == np.float32, "without noise nothing is at stake"
    assert np.abs(plain - one[0]).max() > 1e-4, "single precision would not do"
    ring = (atoll.Clip(2.0), EXPECTED, atoll.Ring(), noise)
    assert summed(many.astype(np.uint32), *ring).dtype == np.uint32, "a ring adds without rounding"


def test_noise_on_a_wide_sum_gives_the_type_of_its_rows() -> None:
    wire, codec = chain(atoll.Clip(1.0), EXPECTED, atoll.Gaussian(1.0))(Wire.of(D, N))
    for world in (World(0), World.real(0)):
        total, _, _ = codec.decode(np.zeros(D), codec.start, DecodeContext(N, world, 0))
        assert total.dtype == np.dtype(wire.row.dtype)


def test_shares_of_noise_are_enough_if_only_the_honest_ones_count() -> None:
    stages = (atoll.Clip(1.0), EXPECTED, atoll.Ring(), atoll.Gaussian(1.0, "distributed", honest=0.6))
    wire, codec = chain(*stages)(Wire.of(D, N))
    assert wire.total.min_cohort == 15
    rows = np.zeros((15, D), np.float32)
    sent, _, _ = codec.encode(rows, {}, EncodeContext(np.ones(15, np.float32), World(0), 0, np.arange(15)))
    total = signed(np.add.reduce(sent, 0, dtype=sent.dtype))
    bound = chain(atoll.Clip(1.0), EXPECTED, atoll.Ring())(Wire.of(D, N))[0].l2
    assert np.std(total) == pytest.approx(bound, rel=0.05)


def test_corrupt_parties_count_as_survivors_and_not_as_noise() -> None:
    """Of the 18 that are in a sum at least, 3 leave their noise out: the shares of 15 are enough."""
    stages = (atoll.Clip(1.0), EXPECTED, atoll.Ring(), atoll.Gaussian(1.0, "distributed", honest=0.6, corrupt=0.12))
    wire, codec = chain(*stages)(Wire.of(D, N))
    assert (wire.total.min_cohort, wire.noise[-1].corrupt) == (18, 3)
    rows = np.zeros((15, D), np.float32)
    sent, _, _ = codec.encode(rows, {}, EncodeContext(np.ones(15, np.float32), World(0), 0, np.arange(15)))
    bound = chain(atoll.Clip(1.0), EXPECTED, atoll.Ring())(Wire.of(D, N))[0].l2
    assert np.std(signed(np.add.reduce(sent, 0, dtype=sent.dtype))) == pytest.approx(bound, rel=0.05)
    with pytest.raises(ValueError, match="together at most 1"):
        atoll.Gaussian(1.0, "distributed", honest=0.9, corrupt=0.2)


def test_noise_of_the_server_on_an_integer_sum_is_whole() -> None:
    """The server may add its noise to a sum that it got from SecureSum: inside the ring, scaled by the ring's bound."""
    stages = (atoll.Clip(1.0), EXPECTED, atoll.Ring(), atoll.Gaussian(2.0))
    total, _, _ = noise_of(*stages)
    assert np.std(total) == pytest.approx(2.0 / N, rel=0.05)
    step = 1 / (2**15 - 1)
    assert np.allclose(total * N / step, np.rint(total * N / step), atol=1e-2)


def test_two_draws_of_the_operating_system_differ_and_two_of_an_address_do_not() -> None:
    zero = np.zeros(100, np.float32)

    def noise(world: World) -> np.ndarray:
        return add_noise(zero, 1.0, world.private("x"))

    assert not np.array_equal(noise(World.real(7)), noise(World.real(7)))
    assert np.array_equal(noise(World(7)), noise(World(7)))
    assert not np.array_equal(noise(World(7)), noise(World(8)))


def test_outside_simulations_real_noise_lies_on_a_grid() -> None:
    """What is left of the argument's last digits after the noise is nothing: outputs are multiples of one step."""
    x = np.random.default_rng(0).normal(size=2000)
    out = add_noise(x, 3.0, World.real(0).private("x"))
    step = 2.0 ** np.floor(np.log2(3.0 / 2**30))
    assert np.array_equal(out / step, np.rint(out / step))


@pytest.mark.parametrize("every", [1, 4, 7])
def test_tree_noise_of_all_rounds_grows_with_their_logarithm(every: int) -> None:
    _, codec = chain(atoll.Clip(1.0), EXPECTED, atoll.TreeNoise(1.0, every))(Wire.of(D, 1))
    total = np.zeros(D)
    zero = np.zeros(D, np.float32)
    for t in range(every):
        total += codec.decode(zero, codec.start, DecodeContext(1, World(0), t)).x
        ones = (t + 1).bit_count()
        assert np.std(total) == pytest.approx(np.sqrt(ones), rel=0.06)
    fresh = codec.decode(zero, codec.start, DecodeContext(1, World(0), every)).x  # the next tree starts anew
    assert np.std(fresh) == pytest.approx(1.0, rel=0.06)


def test_what_would_make_the_noise_a_lie_is_refused() -> None:
    wire = Wire.of(10, 50)

    def stages(*parts: Stage) -> object:
        return lambda: chain(*parts)(wire)

    gaussian = atoll.Gaussian(1.0)
    check_refusal(stages(gaussian), "put Clip(norm) before it")
    check_refusal(stages(atoll.Clip(1.0), atoll.Weigh(), gaussian), "Weigh(max_weight=…)")
    check_refusal(stages(atoll.Clip(1.0), atoll.Average(), gaussian), "Average(by='expected')")
    check_refusal(stages(atoll.Clip(1.0), EXPECTED, gaussian, gaussian), "after the noise of the server")
    check_refusal(stages(atoll.Clip(1.0), EXPECTED, gaussian, atoll.Ring()), "put it first")
    check_refusal(stages(atoll.Clip(1.0), gaussian, EXPECTED), "after the noise of the server")
    check_refusal(stages(atoll.Clip(1.0), EXPECTED, atoll.Gaussian(1.0, "distributed")), "put Ring() before")
    check_refusal(stages(atoll.Clip(1.0), EXPECTED, atoll.Gaussian(1.0, "local"), atoll.Ring()), "noise of each party")
    tiny = (atoll.Clip(1.0), EXPECTED, atoll.Ring(2), atoll.Gaussian(0.5, "distributed"))
    check_refusal(stages(*tiny), "2 are needed", "raise Ring(bits=…)")
    full = (atoll.Clip(1.0), EXPECTED, atoll.Ring(24), atoll.Gaussian(40.0, "distributed"))
    check_refusal(stages(*full), "do not fit into the ring")
    chain(atoll.Clip(1.0), atoll.Weigh(max_weight=60), gaussian)(wire)
    for make, words in [
        (lambda: atoll.Gaussian(0.0), "positive"), (lambda: atoll.Gaussian(1.0, "here"), "central"),
        (lambda: atoll.Gaussian(1.0, honest=0.0), "fraction"), (lambda: atoll.TreeNoise(0.0), "positive"),
        (lambda: atoll.TreeNoise(1.0, 0), "at least one"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            make()


@pytest.mark.parametrize(
    "part", [atoll.Gaussian(), atoll.TreeNoise(), atoll.Ring(), atoll.Budget(1.0), atoll.RoundRobin()]
)
def test_parts_are_records(part: object) -> None:
    check_part(part)


def test_quick_normal_numbers_are_normal() -> None:
    """Kolmogorov and Smirnov on four million of them, chi-square on the tails, moments."""
    from scipy.stats import chisquare, kstest, norm

    from atoll.privacy.normal import normal

    z = np.concatenate([normal(1_000_001, 3, "quick", k) for k in range(4)])
    assert kstest(z, "norm").pvalue > 1e-3
    edges = [-np.inf, -4.5, -4.2, -4.0, -3.5, -3.0, 3.0, 3.5, 4.0, 4.2, 4.5, np.inf]
    expected = np.diff(norm.cdf(edges)) * len(z)
    assert chisquare(np.histogram(z, edges)[0], expected).pvalue > 1e-3
    assert np.std(z) == pytest.approx(1.0, abs=2e-3)
    assert np.mean(z) == pytest.approx(0.0, abs=2e-3)
    assert np.array_equal(normal(5, 1, "a"), normal(5, 1, "a"))
