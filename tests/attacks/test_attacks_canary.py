"""A server that knows the job's seed finds no single example in the answers of a real party, and all in a simulation's.

Real noise cannot be seeded, so these tests could fail by chance. `test_chance_...` computes how often: a canary's score
is c + s·N(0, 1), where c is the number of steps that drew it. So the two counts behind a lower bound are binomial, and
the chance of a wrong verdict is a sum over them, for every threshold that the audit could choose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom, norm

from atoll.attacks.canary import Canaries, audit_examples
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.core.world import World
from atoll.models import ExampleDP
from atoll.models.batches import poisson_batches
from atoll.privacy.audit import _lower_bounds

DELTA, ASKS, SEED = 1e-5, 120, 7
STATED = ExampleDP(clip=1.0, multiplier=1.2)  # ε 3.84 for one full step: the most noise at which a quarter stands out
QUARTER = replace(STATED, multiplier=STATED.multiplier / 4)
PLANS = {
    "full batch": Canaries(STATED),
    "Poisson batches": Canaries(STATED, batch=125),  # a quarter in each of four steps
    "torch": Canaries(STATED, backend="torch"),
    "torch, Poisson batches": Canaries(STATED, batch=125, backend="torch"),
}
each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def silent(plan: Canaries, t: int, world: World) -> Array:
    """The scores of answers without noise to speak of: how often each canary was drawn."""
    return np.rint(replace(plan, example_dp=ExampleDP(1.0, 1e-3)).answer(world, t)[:-1] * (plan.batch or plan.size))


@each_plan
def test_a_canary_moves_its_own_weight_by_the_clip_for_each_step_that_draws_it(plan: Canaries) -> None:
    for there in (plan.present, np.zeros(plan.size, bool), np.ones(plan.size, bool)):
        exact = replace(plan, example_dp=ExampleDP(0.5, 0.0))
        scores = exact.scores(exact.answer(World.simulated(0), 0, there))
        group = Group(np.array([0]), plan.samples(), np.array([0]), World.simulated(0), 0)
        drawn = poisson_batches(group, plan.epochs, plan.batch)
        steps = zip(drawn.rows[0], drawn.real[0], strict=True)
        counts = np.bincount(np.concatenate([rows[:n] for rows, n in steps]), minlength=plan.size)
        assert np.allclose(scores, counts * there, atol=1e-4)


def test_the_stated_epsilon_is_the_ledgers() -> None:
    assert PLANS["full batch"].stated(DELTA) == pytest.approx(3.8396, abs=1e-3)
    assert PLANS["Poisson batches"].stated(DELTA) == pytest.approx(3.5856, abs=1e-3)
    assert all(plan.stated(DELTA) <= 4 for plan in PLANS.values())


@each_plan
def test_a_real_party_keeps_its_promise_against_a_server_that_knows_the_seed(plan: Canaries) -> None:
    found = audit_examples(plan, partial(plan.answer, World.real(SEED)), seed=SEED, asks=ASKS, delta=DELTA)
    assert not found.caught
    assert 0 < found.looks.lower < found.looks.claimed <= 4


@each_plan
def test_noise_from_the_seed_hides_nothing_from_a_server_that_knows_it(plan: Canaries) -> None:
    """What release 0.1 did between real parties. A server that does not replay the draws would not notice."""
    found = audit_examples(plan, partial(plan.answer, World.simulated(SEED)), seed=SEED, asks=ASKS, delta=DELTA)
    assert found.replays.lower > 7 > found.replays.claimed
    assert not found.looks.caught
    other = audit_examples(plan, partial(plan.answer, World.simulated(SEED)), seed=SEED + 1, asks=ASKS, delta=DELTA)
    assert not other.caught


@each_plan
def test_a_quarter_of_the_noise_is_flagged(plan: Canaries) -> None:
    weak = replace(plan, example_dp=QUARTER)
    found = audit_examples(plan, partial(weak.answer, World.real(SEED)), seed=SEED, asks=ASKS, delta=DELTA)
    assert found.looks.caught


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_seed_says_nothing_of_a_real_partys_batches(backend: str) -> None:
    """In a simulation a server knows who is drawn. At a real party it guesses as well as chance: Σ P(c)², c of 4."""
    plan = replace(PLANS["Poisson batches"], backend=backend)
    guess, real = (np.array([silent(plan, t, world(SEED)) for t in range(ASKS)])[:, plan.present]
                   for world in (World.simulated, World.real))  # fmt: skip
    again = np.array([silent(plan, t, World.simulated(SEED)) for t in range(ASKS)])[:, plan.present]
    chance = float(np.sum(binom.pmf(np.arange(5), 4, 0.25) ** 2))
    assert np.array_equal(guess, again)
    assert abs(np.mean(guess == real) - chance) < 6 * np.sqrt(chance * (1 - chance) / guess.size)  # once in 5·10⁸


def caught_chance(claimed: float, half: int, present: float, absent: float) -> float:
    """P(lower bound > claimed) where the two counts are binomial."""
    false = np.arange(half + 1)
    likely = binom.pmf(false, half, absent)
    false, likely = false[likely > 1e-14], likely[likely > 1e-14]
    low, high = np.zeros(len(false), int), np.full(len(false), half + 1)  # the fewest hits that are enough
    for _ in range(half.bit_length() + 1):
        middle = np.minimum((low + high) // 2, half)
        enough = _lower_bounds(middle, half, false, half, DELTA, 0.95) > claimed
        low, high = np.where(enough, low, middle + 1), np.where(enough, np.minimum(middle, high), high)
    return float(likely @ binom.sf(high - 1, half, present))


def rates(steps: int, rate: float, sigma: float, threshold: float) -> tuple[float, float]:
    """How often a score with a canary, and one without, is above a threshold."""
    spread, drawn = sigma * np.sqrt(steps), np.arange(steps + 1)
    present = binom.pmf(drawn, steps, rate) @ norm.sf((threshold - drawn) / spread)
    return float(present), float(norm.sf(threshold / spread))


@pytest.mark.parametrize("plan", [PLANS["full batch"], PLANS["Poisson batches"]], ids=["full batch", "Poisson batches"])
def test_chance_of_a_wrong_verdict_is_below_one_in_a_million(plan: Canaries) -> None:
    rate, steps = ExampleDP.per_round(plan.size, plan.epochs, plan.batch)
    claimed, half = plan.stated(DELTA), ASKS * plan.size // 4
    for sigma in (STATED.multiplier, STATED.multiplier * np.sqrt(2)):  # who replays in vain doubles the variance
        wide = np.linspace(-6, 7, 50) * sigma * np.sqrt(steps)
        assert max(caught_chance(claimed, half, *rates(steps, rate, sigma, at)) for at in wide) < 1e-7
    # One half of the scores chooses the threshold with the highest bound, the other half is tested at it. Who misses a
    # quarter of the noise has no threshold that reaches this level on the first half, or one that then fails.
    level, at = claimed + 0.9, np.linspace(0, 8, 160) * QUARTER.multiplier * np.sqrt(steps)
    pairs = [rates(steps, rate, QUARTER.multiplier, one) for one in at]
    chosen = np.array([caught_chance(level, half, *pair) for pair in pairs])
    missed = np.array([1 - caught_chance(claimed, half, *pair) for pair in pairs])
    assert (1 - chosen.max()) + 2 * float(chosen @ missed) < 1e-7  # twice: the audit looks at up to 320 thresholds


def test_a_party_without_canaries_is_refused() -> None:
    with pytest.raises(ValueError, match="size=1"):
        Canaries(size=1)
