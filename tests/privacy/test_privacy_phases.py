"""The ledger of a method with several phases: ε as dp-accounting composes it by hand, whatever a round asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import sqrt

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import pld, rdp

import atoll
from atoll.core.method import Method, Phase, Population, State
from atoll.core.tree import Schema, Tree
from atoll.core.wire import Event, Mismatch
from atoll.core.world import World
from atoll.privacy import Account, Spend
from atoll.privacy.account import _ORDERS
from atoll.privacy.ledger import Ledger, calibrated, ledger_of

SIZES, DELTA, Q = np.full(100, 10), 1e-3, 0.1


@dataclass(frozen=True)
class Asking(Method):
    """Phases a, b, c …, of which those in `chained` ask who answered the phase before."""

    number: int
    chained: tuple[int, ...] = ()
    free: bool = False  # the state decides what is asked

    @property
    def phases(self) -> Mapping[str, Phase]:
        one = Phase(Schema((("x", (1,)),)))
        return {"abcdef"[k]: one._replace(same_cohort=k in self.chained) for k in range(self.number)}

    @property
    def cycle(self) -> tuple[str, ...]:
        return () if self.free else tuple(self.phases)

    def init(self, world: World, population: Population) -> State:
        raise NotImplementedError

    def broadcast(self, state: State) -> Tree:
        raise NotImplementedError

    client_update = server_update = init  # type: ignore[assignment]


def ledger(
    method: Method, *multipliers: float, where: str = "central", select: object = atoll.Poisson(Q), seen: bool = False
) -> Ledger:  # fmt: skip
    noise = {name: (Event(where, z),) for name, z in zip(method.phases, multipliers, strict=True)}  # type: ignore[arg-type]
    made = ledger_of(
        noise,
        select,
        method,
        SIZES,
        steady=True,
        rounds=10,
        deltas={"party": DELTA},  # type: ignore[arg-type]
        seen=seen,
    )
    assert made is not None
    return made


def composed(*events: tuple[dpa.DpEvent, int], relation: str = "ADD_OR_REMOVE_ONE") -> float:
    accountant = rdp.RdpAccountant(_ORDERS, dpa.NeighboringRelation[relation])
    for event, times in events:
        accountant.compose(event, times)
    return float(accountant.get_epsilon(DELTA))


def poisson(*multipliers: float) -> dpa.DpEvent:
    """All this noise on one Poisson sample."""
    return dpa.PoissonSampledDpEvent(Q, dpa.ComposedDpEvent([dpa.GaussianDpEvent(z) for z in multipliers]))


@pytest.mark.parametrize(("first", "second"), [(1.0, 1.0), (0.8, 2.5), (2.5, 0.8)])
def test_phases_of_one_cohort_are_one_sample_with_all_its_noise(first: float, second: float) -> None:
    """Half a round has the noise of its first phase."""
    account = ledger(Asking(2, (1,)), first, second).of()
    both = poisson(first, second)
    one = poisson(1 / sqrt(1 / first**2 + 1 / second**2))
    assert composed((both, 1)) == pytest.approx(composed((one, 1)), rel=1e-12)
    for rounds in (1, 2, 10, 50):
        assert account.epsilon(2 * rounds) == pytest.approx(composed((both, rounds)), rel=1e-9)
        halfway = composed((both, rounds), (poisson(first), 1))
        assert account.epsilon(2 * rounds + 1) == pytest.approx(halfway, rel=1e-9)
        assert account.epsilon(2 * rounds - 1) < account.epsilon(2 * rounds) < account.epsilon(2 * rounds + 1)
    # Two samples would be cheaper, one ask a round cheaper still: neither is what happens.
    assert account.epsilon(20) > composed((poisson(first), 10), (poisson(second), 10)) > composed((poisson(first), 10))


def test_by_privacy_loss_distributions_a_chain_is_one_sample_too() -> None:
    account = ledger(Asking(2, (1,)), 1.0, 2.0).of()
    accountant = pld.PLDAccountant()
    accountant.compose(dpa.PoissonSampledDpEvent(Q, dpa.GaussianDpEvent(1 / sqrt(1 + 1 / 4))), 10)
    assert account.tight(20) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    assert account.tight(20) < account.epsilon(20)  # type: ignore[operator]


def test_independent_phases_are_samples_of_their_own() -> None:
    account = ledger(Asking(3), 1.0, 2.0, 0.7).of()
    each = [(poisson(z), 10) for z in (1.0, 2.0, 0.7)]
    assert account.epsilon(30) == pytest.approx(composed(*each), rel=1e-9)
    assert account.epsilon(31) == pytest.approx(composed(*each, (poisson(1.0), 1)), rel=1e-9)


def test_a_chain_beside_a_phase_of_its_own() -> None:
    account = ledger(Asking(3, (2,)), 1.0, 2.0, 2.0).of()
    assert account.epsilon(30) == pytest.approx(composed((poisson(1.0), 10), (poisson(2.0, 2.0), 10)), rel=1e-9)


def test_samples_of_fixed_size_and_everybody() -> None:
    account = ledger(Asking(2, (1,)), 2.0, 2.0, select=atoll.Count(10)).of()
    assert account == Account(Spend(2.0, "fixed", 0.1, population=100), DELTA, account.after, (2,))
    assert [spend.multiplier for (spend,) in account.after] == pytest.approx([2.0, sqrt(2.0)])
    everybody = ledger(Asking(2, (1,)), 2.0, 3.0, select=atoll.All()).of()
    apart = composed((dpa.GaussianDpEvent(2.0), 5), (dpa.GaussianDpEvent(3.0), 5))
    assert everybody.epsilon(10) == pytest.approx(apart, rel=1e-9)


def test_a_sample_that_is_seen_amplifies_nothing() -> None:
    made = ledger(Asking(2, (1,)), 1.0, 2.0, where="distributed", seen=True)
    plain = composed((dpa.GaussianDpEvent(1.0), 10), (dpa.GaussianDpEvent(2.0), 10))
    assert made.of().epsilon(20) == pytest.approx(plain, rel=1e-9)


def test_rounds_that_begin_again_never_spend_more_than_is_said() -> None:
    """Every order of asks that restarts can make, with three phases of one cohort and unequal noise."""
    noise = (0.6, 3.0, 3.0)
    account = ledger(Asking(3, (1, 2)), *noise).of()
    # A block is (asks, phases of one sample that were opened); 3 asks end a round, at asks 2 and 3 it may begin again.
    blocks = [(3, 3), (2, 1), (3, 2)]
    for number in range(1, 4):
        for some in product(blocks, repeat=number):
            for rest in range(3):
                asks = sum(asked for asked, _ in some) + rest
                opened = [count for _, count in some] + [rest] * (rest > 0)
                spent = [(poisson(*noise[:count]), 1) for count in opened]
                assert account.epsilon(asks) >= composed(*spent) * (1 - 1e-9)
    equal = ledger(Asking(3, (1, 2)), 2.0, 2.0, 2.0).of()
    assert equal.epsilon(30) == pytest.approx(composed((poisson(2.0, 2.0, 2.0), 10)), rel=1e-6)
    assert account.tight(30) is None
    assert "accountant: RDP, at most so much" in account.words()
    assert "at most" not in ledger(Asking(2, (1,)), 0.6, 3.0).of().words()


def test_noise_of_each_partys_own_counts_every_ask_as_the_one_with_least() -> None:
    account = ledger(Asking(2), 3.0, 2.0, where="local").of()
    assert account == Account(Spend(2.0, mechanism="local", population=100), DELTA)


def test_where_the_state_decides_what_is_asked_nothing_is_planned_and_no_sampling_claimed() -> None:
    made = ledger(Asking(2, free=True), 3.0, 2.0)
    assert made.of() == Account(Spend(2.0, population=100), DELTA)
    assert made.planned(10) is None
    assert ledger(Asking(1, free=True), 2.0).of() == Account(Spend(2.0, population=100), DELTA)
    # One cohort from the first ask on is one sample of the whole run.
    assert ledger(Asking(2, (0, 1)), 2.0, 2.0).of() == Account(Spend(2.0, population=100), DELTA)
    with pytest.raises(Mismatch, match=r"decides as it runs.*Budget"):
        calibrated(made, 3.0, 10)
    stop = atoll.Budget(3.0, DELTA).bound(made)
    assert stop.asks == made.of().rounds_within(3.0)  # type: ignore[attr-defined]


def test_a_budget_begins_no_round_that_it_cannot_end() -> None:
    made = ledger(Asking(2, (1,)), 1.0, 1.0)
    account = made.of()
    between = (account.epsilon(7) + account.epsilon(8)) / 2
    stop = atoll.Budget(between, DELTA).bound(made)
    assert stop.asks == 6  # type: ignore[attr-defined]
    assert "allows 3 rounds" in stop.why  # type: ignore[attr-defined]
    with pytest.raises(Mismatch, match="one round alone spends"):
        atoll.Budget((account.epsilon(1) + account.epsilon(2)) / 2, DELTA).bound(made)


def test_calibration_keeps_the_proportion_of_the_phases() -> None:
    made = ledger(Asking(2, (1,)), 1.0, 3.0)
    z = calibrated(made, 3.0, 10)
    assert ledger(Asking(2, (1,)), z, 3 * z).of().epsilon(20) <= 3.0
    assert ledger(Asking(2, (1,)), 0.99 * z, 2.97 * z).of().epsilon(20) > 3.0


@pytest.mark.parametrize(("noise", "words"), [
    ({"a": (Event("central", 1.0),), "b": ()}, "phase b adds no noise"),
    ({"a": (), "b": (Event("central", 1.0),)}, "phase a adds no noise"),
    ({"a": (Event("central", 1.0),), "b": (Event("local", 1.0),)}, "do not add up to one epsilon"),
    ({"a": (Event("tree", 1.0, 10),), "b": (Event("tree", 1.0, 10),)}, "TreeNoise"),
])  # fmt: skip
@pytest.mark.parametrize("chained", [(), (1,)])
def test_noise_that_promises_nothing_is_refused(
    noise: Mapping[str, tuple[Event, ...]], words: str, chained: tuple[int, ...]
) -> None:
    with pytest.raises(Mismatch, match=words):
        ledger_of(noise, atoll.RoundRobin(10), Asking(2, chained), SIZES, steady=True, rounds=9, deltas={})
