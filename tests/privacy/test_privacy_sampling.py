"""What is claimed of sampling is true: of whom cohorts are drawn, who can know them, and whose size counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import rdp

import atoll
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.method import History, Population
from atoll.core.tree import Tree
from atoll.core.world import World
from atoll.job.assemble import Assembled, assemble
from atoll.privacy.account import _ORDERS
from atoll.runtimes.network.server.serve import remote

PARTIES, SEED = 60, 7
CENTRAL = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(2.0))
HIDDEN = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), atoll.Gaussian(2.0, "distributed"))


def job(select: Any, channel: atoll.Channel, method: Any = None, rounds: int = 20) -> atoll.Job:
    return atoll.Job(method or atoll.FedAvg(atoll.models.softmax()), select, channel, rounds=rounds)


def served(made: atoll.Job, sizes: list[int] | None = None) -> Assembled:
    data = atoll.data.load("digits").split(3, seed=0)
    return assemble(made, remote(data, sizes or [20] * PARTIES), SEED, world=World.real(SEED))


def oracle(event: dpa.DpEvent, delta: float) -> float:
    accountant = rdp.RdpAccountant(_ORDERS)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


# ---- the liar: a party that computes the cohorts from the seed of the job


def picks(world: World, rounds: int = 200) -> list[list[int]]:
    everybody, select = Population(np.full(PARTIES, 9)), atoll.Poisson(0.2)
    return [select.pick(t, everybody, History(), {}, world).cohort.tolist() for t in range(rounds)]


def test_a_curious_party_cannot_compute_cohorts_from_the_seed_of_the_job() -> None:
    """The job's text has the seed. On the old code 200 of 200 cohorts were recomputed."""
    real, guessed = picks(World.real(SEED)), picks(World.simulated(SEED))
    assert guessed == picks(World.rehearsed(SEED))  # a simulation repeats
    assert sum(mine == theirs for mine, theirs in zip(guessed, real, strict=True)) <= 1
    asked = np.concatenate([np.bincount(cohort, minlength=PARTIES) for cohort in real]).mean()
    assert asked == pytest.approx(0.2, abs=0.02)  # the rate is as it was: 12,000 coins


class Dies(Exception):
    """The server, at its first ask."""


class Failing:
    """A runtime that has a disk, and fails as soon as anybody is asked."""

    def __init__(self) -> None:
        self.memory: Tree | None = None
        self.asked: list[int] = []

    def ask(self, ask: Ask) -> Replies:
        self.asked = ask.to.tolist()
        raise Dies

    def checkpoint(self, memory: Tree) -> None:
        self.memory = memory

    def note(self, note: Note) -> None: ...

    def settle(self, used: Any) -> None: ...


def test_a_server_that_fails_as_it_asks_asks_the_same_cohort_again() -> None:
    """Who could be drawn twice for one round would take part more often than is accounted for."""
    made = served(job(atoll.Poisson(0.5), atoll.Channel(CENTRAL)))
    made = replace(made, program=replace(made.program, splits=()))
    disk, cohorts = Failing(), list[list[int]]()
    for _ in range(5):
        with pytest.raises(Dies):
            drive(made.running(disk.memory), disk)
        cohorts.append(disk.asked)
    assert len(cohorts[0]) > 10
    assert cohorts == [cohorts[0]] * 5


# ---- what is claimed


def test_served_samples_of_a_fixed_size_amplify_nothing() -> None:
    """Whoever is away, slow or refuses is not there to be drawn: the sample is not one of all parties."""
    some = job(atoll.Count(6), atoll.Channel(CENTRAL))
    data = atoll.data.load("digits").split(PARTIES, seed=0)
    simulated, real = assemble(some, data, SEED).ledger, served(some).ledger
    assert simulated is not None
    assert simulated.of().spend.rate == 0.1
    assert real is not None
    assert real.of().spend.rate == 1.0
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), 20)  # replacing one moves a sum by two bounds
    assert real.of().epsilon(20) == pytest.approx(oracle(event, real.of().delta), rel=0.02)


def test_who_takes_part_in_a_hidden_sum_sees_the_cohort_and_no_sampling_is_claimed() -> None:
    hidden = job(atoll.Poisson(0.2), atoll.Channel(HIDDEN, atoll.SecureSum()))
    open_sum = job(atoll.Poisson(0.2), atoll.Channel(CENTRAL))
    among, outside = served(hidden).ledger, served(open_sum).ledger
    assert among is not None
    assert outside is not None
    spend = among.of().spend
    assert (spend.sampling, spend.rate) == ("none", 1.0)
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(spend.multiplier), 20)
    assert among.of().epsilon(20) == pytest.approx(oracle(event, among.of().delta))
    assert (outside.of().spend.sampling, outside.of().spend.rate) == ("poisson", 0.2)  # the server's own secret
    sampled = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.2, dpa.GaussianDpEvent(2.0)), 20)
    assert outside.of().epsilon(20) == pytest.approx(oracle(sampled, outside.of().delta))


@pytest.mark.parametrize("sizes", [[10, 11, 200], list(range(5, 400)), [11] + [1000] * 40])
def test_example_noise_is_accounted_for_the_party_that_spends_most(sizes: list[int]) -> None:
    """A party of 11 examples with batches of 10 takes two steps at a rate of 10/11: more than one of 10 does."""
    method = atoll.FedAvg(atoll.models.softmax(), batch=10, example_dp=atoll.ExampleDP(1.0, 2.0))
    ledger = served(job(atoll.All(), atoll.Channel(), method), sizes).ledger
    assert ledger is not None
    account = ledger.of("example")
    assert account.terms()["neighbours"] == "zero-out-one"  # how many examples there are is told
    each = []
    for n in sorted(set(sizes)):
        rate, steps = method.example_steps(n)
        noise = dpa.GaussianDpEvent(2.0)
        event = noise if rate == 1 else dpa.PoissonSampledDpEvent(rate, noise)
        each.append(oracle(dpa.SelfComposedDpEvent(event, 20 * steps), account.delta))
    assert account.epsilon(20) == pytest.approx(max(each))


def test_very_many_sizes_count_for_at_least_the_worst_of_them() -> None:
    method = atoll.FedAvg(atoll.models.softmax(), batch=10, example_dp=atoll.ExampleDP(1.0, 2.0))
    ledger = served(job(atoll.All(), atoll.Channel(), method), list(range(11, 3000, 7))).ledger
    assert ledger is not None
    account = ledger.of("example")
    rate, steps = method.example_steps(11)
    sampled = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(2.0)), 20 * steps)
    assert account.epsilon(20) >= oracle(sampled, account.delta) * (1 - 1e-9)


def test_extra_answers_are_in_every_figure() -> None:
    plain = job(atoll.Poisson(0.2), atoll.Channel(CENTRAL))
    more = replace(plain, extra_answers=3)
    few, many = served(plain).ledger, served(more).ledger
    assert few is not None
    assert many is not None
    assert many.planned(20) == 23
    assert many.spent(20)["epsilon"] == few.spent(23)["epsilon"]
    limited = replace(more, stop=[atoll.Budget(few.of().epsilon(20))])
    assert "allows 17 rounds" in served(limited).program.stop[0](History(t=17)) or ""
