"""Which draws the seed gives away: public ones in every world, private ones in a simulation only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import atoll
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.core.wire import EncodeContext, Stage, Wire
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.models.batches import poisson_batches
from atoll.programs.federate import DecodeContext

SEED, D, T, ME = 7, 400, 3, np.array([2])
CLIPPED = (atoll.Clip(1.0), atoll.Average("expected"))
RING = (*CLIPPED, atoll.Ring())


def sent(*stages: Stage) -> Callable[[World], Array]:
    """Return what leaves a party, by world."""

    def encode(world: World) -> Array:
        rows, wire = np.random.default_rng(0).normal(size=(1, D)).astype(np.float32), Wire.of(D, 3)
        for stage in stages:
            wire, codec = stage(wire)
            rows = codec.encode(rows, codec.start, EncodeContext(np.ones(1, np.float32), world, T, ME)).x
        return np.asarray(rows)

    return encode


def opened(world: World) -> Array:
    """Return what the server makes of a sum with central noise."""
    wire = Wire.of(D, 3)
    for stage in (*CLIPPED, atoll.Gaussian(1.0)):
        wire, codec = stage(wire)
    return codec.decode(np.zeros(D, np.float32), codec.start, DecodeContext(3, world, T)).x


def group(world: World) -> Group:
    x = np.random.default_rng(1).normal(size=(60, 5)).astype(np.float32)
    samples = Silos(x, (np.arange(60) % 2).astype(np.int32), np.array([0, 60]))
    return Group(ME, samples, np.array([0]), world, T)


def coins(world: World) -> Array:
    return poisson_batches(group(world), 4, 20).real


def trained(backend: str, batch: int | None = None, noise: float | None = None) -> Callable[[World], Array]:
    def train(world: World) -> Array:
        model = atoll.models.softmax(backend=backend).bind((5,), 2)  # type: ignore[arg-type]
        example_dp = None if noise is None else atoll.ExampleDP(1.0, noise)
        method = atoll.FedAvg(model, 2, batch, 0.1, example_dp=example_dp)
        given = method.client_update({"params": np.zeros(model.size, np.float32), "lr": 0.1}, group(world))
        return np.asarray(given.vector["delta"])

    return train


PRIVATE = {
    "local noise": sent(*CLIPPED, atoll.Gaussian(1.0, where="local")),
    "noise in the ring": sent(*RING, atoll.Gaussian(1.0, where="distributed")),
    "central noise": opened,
    "rounding to the ring": sent(*RING),
    "rounding to levels": sent(atoll.Quantise(4)),
    "rounding to signs": sent(atoll.Quantise(1)),
    "coins of private batches": coins,
    "noise of examples, jax": trained("jax", noise=1.0),
    "noise of examples, torch": trained("torch", noise=1.0),
    "batches of examples, jax": trained("jax", 20, 1e-6),
    "batches of examples, torch": trained("torch", 20, 1e-6),
}
PUBLIC = {
    "rotation": sent(atoll.Rotate()),
    "which numbers": sent(atoll.RandomK(0.1, feedback=False)),
    "order of batches, jax": trained("jax", 20),
    "order of batches, torch": trained("torch", 20),
}


@pytest.mark.parametrize("made", PRIVATE.values(), ids=PRIVATE)
def test_the_seed_repeats_private_draws_in_a_simulation_only(made: Callable[[World], Array]) -> None:
    guess = made(World.simulated(SEED))
    assert np.array_equal(guess, made(World.simulated(SEED)))
    real, again = made(World.real(SEED)), made(World.real(SEED))
    assert not np.array_equal(real, guess)
    assert not np.array_equal(real, again)


@pytest.mark.parametrize("made", PUBLIC.values(), ids=PUBLIC)
def test_the_seed_says_all_of_public_draws_in_every_world(made: Callable[[World], Array]) -> None:
    guess = made(World.simulated(SEED))
    assert np.array_equal(made(World.real(SEED)), guess)
    assert not np.array_equal(made(World.real(SEED + 1)), guess)


def test_a_source_gives_what_its_world_says() -> None:
    simulated, real = (world.private("a purpose", 1, 2) for world in (World.simulated(SEED), World.real(SEED)))
    assert (simulated.secret, real.secret) == (False, True)
    assert simulated.raw(9) == simulated.raw(9)
    assert np.array_equal(simulated.words(9, "uint32"), simulated.words(9, "uint32"))
    assert real.raw(9) != real.raw(9)
    assert not np.array_equal(real.words(9, "uint32"), real.words(9, "uint32"))
    assert real.key() is None
    with pytest.raises(ValueError, match="no generator that could be repeated"):
        real.generator()


@pytest.mark.parametrize("sigma", [1.0, 1.999, 0.003, 700.0])
def test_noise_of_examples_is_whole_steps_of_its_grid_up_to_the_tail(sigma: float) -> None:
    """No number of steps that is ever drawn (13.5 deviations) is rounded in single precision."""
    noise = atoll.ExampleDP(1.0, sigma)
    grid = noise.grid(World.real(0))
    assert 13.5 * sigma / grid < 2**24
    steps = noise.noise(group(World.real(0)), 0, 0, 1000, "float32").astype(np.float64) / grid
    assert np.array_equal(steps, np.rint(steps))
