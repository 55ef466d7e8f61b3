"""The ledger: reads what a job spends from the wire, the select and the method, and says it in figures and words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import hypot

import numpy as np

from atoll.core.method import Method, Select
from atoll.core.tree import Array
from atoll.core.wire import Event, Mismatch
from atoll.privacy.account import Account
from atoll.privacy.calibrate import delta_for
from atoll.privacy.events import SamplingKind, Spend, Unit

_USEFUL = 20.0  # ε
_DELTA = 1e-5  # by default: among few units the rule for many would permit almost everything
_SIZES = 64  # of parties, beyond which neighbouring ones are taken together, each figure the worse of theirs


@dataclass(frozen=True)
class Ledger:
    """One account for each unit that is protected: parties, examples, or both.

    `asks` are those of one round; 0 where the method decides as it runs. `extra` answers may be worked out anew beside
    those of the rounds; every figure counts them as asks.
    """

    accounts: tuple[Account, ...]
    asks: int = 1
    extra: int = 0

    def planned(self, rounds: int) -> int | None:
        """Return how many asks so many rounds take; None where nobody knows before they are run."""
        return rounds * self.asks + self.extra if self.asks else None

    def of(self, unit: str | None = None) -> Account:
        """Return the account of a unit, or the only one."""
        found = [a for a in self.accounts if unit in (None, a.spend.unit)]
        if not found:
            raise Mismatch(f"nothing here protects a single {unit}: its noise protects {self.accounts[0].spend.unit}s")
        return found[0]

    def spent(self, asks: int, *, last: bool = False) -> dict[str, object]:
        """Return the facts of so many asks: ε of each unit; at the end also as tight as it can be computed."""
        asks, facts = asks + self.extra, dict[str, object]()
        for account in self.accounts:
            name = "epsilon" if account is self.accounts[0] else f"epsilon_{account.spend.unit}"
            epsilon = account.epsilon(asks)
            facts[name] = epsilon
            if last:
                # Where so much was spent, tighter figures are of no use to anybody, and take long.
                tight = account.tight(asks) if epsilon < _USEFUL else None
                facts |= {f"{name}_tight": tight} if tight is not None else {}
        if last:
            facts |= self.terms()
        return facts

    def terms(self) -> dict[str, object]:
        """Return what each ε of `spent` means, as facts: "epsilon_means" and so on, each with its fields."""
        first, *others = self.accounts
        found: dict[str, object] = {"epsilon_means": first.terms()}
        return found | {f"epsilon_{account.spend.unit}_means": account.terms() for account in others}


def ledger_of(
    noise: Mapping[str, tuple[Event, ...]], select: Select, method: Method, sizes: Array, *, steady: bool, rounds: int,
    deltas: Mapping[str, float], extra: int = 0, seen: bool = False,
) -> Ledger | None:  # fmt: skip
    """Open the accounts of a job; None where no noise is added.

    `noise` is what is added in each phase. The sampling is read from the select that does it. `steady`: everybody is
    always online, so that a sample of fixed size is drawn from all. `deltas` are those that a budget asks for, by unit.
    `extra` answers are allowed beside those of the rounds. `seen`: parties see who takes part, as those of a hidden sum
    do, so that no sampling hides anybody.
    """
    accounts = []
    for k in range(len(_places(noise, method))):
        spends = {phase: _of_parties(events[k], select, len(sizes), steady) for phase, events in noise.items()}
        spends = {phase: _unsampled(spend) for phase, spend in spends.items()} if seen else spends
        accounts.append(_of_phases(spends, method, _delta("party", len(sizes), deltas)))
    if method.example_dp is not None:
        delta = _delta("example", int(sizes.sum()), deltas)
        accounts.append(_opened(_of_examples(method, sizes, rounds, deltas), delta))
    return Ledger(tuple(accounts), len(method.cycle), extra) if accounts else None


def _places(noise: Mapping[str, tuple[Event, ...]], method: Method) -> tuple[str, ...]:
    """Return where noise is added, which must be the same in all phases: else there is no one ε."""
    places = {phase: tuple(event.where for event in events) for phase, events in noise.items()}
    noisy = {phase: where for phase, where in places.items() if where}
    if not noisy:
        return ()
    first, there = next(iter(noisy.items()))
    for phase, where in places.items():
        if not where:
            raise Mismatch(
                f"phase {phase} adds no noise, so that the noise of phase {first} promises nothing: add noise in both, "
                "or in none"
            )
        if where != there:
            raise Mismatch(
                f"phase {first} adds noise at {' and '.join(there)}, phase {phase} at {' and '.join(where)}, which do "
                "not add up to one epsilon: add it in the same place"
            )
    if "tree" in there and len(method.cycle) != 1:
        name = type(method).__name__
        raise Mismatch(f"TreeNoise() counts rounds of one ask, and those of {name} can have several: use Gaussian()")
    return there


def _delta(unit: Unit, population: int, deltas: Mapping[str, float]) -> float:
    if unit in deltas:
        return deltas[unit]
    if population < 2:
        raise Mismatch(f"one {unit} alone has nobody to hide among: federate at least two")
    return min(delta_for(population), _DELTA)


def _opened(
    spend: Spend, delta: float, after: tuple[tuple[Spend, ...], ...] = (), again: tuple[int, ...] = ()
) -> Account:
    try:
        return Account(spend, delta, after, again)
    except ValueError as error:
        raise Mismatch(str(error)) from None


def _of_phases(spends: Mapping[str, Spend], method: Method, delta: float) -> Account:
    """Put what the phases spend into one account of asks.

    Phases that ask one cohort are one draw of a sample, on which all their noise acts. Where the state decides what is
    asked, and of whom, every ask counts as the one with the least noise, and no sampling is claimed.
    """
    cycle, phases = method.cycle, method.phases
    least = min(spends.values(), key=lambda spend: spend.multiplier)
    if not cycle or phases[cycle[0]].same_cohort:
        return _opened(_unsampled(least), delta)
    if len(cycle) == 1 or least.mechanism == "local":  # each party's own noise is seen also where too few answer
        return _opened(least, delta)
    after, draws = list[tuple[Spend, ...]](), list[Spend]()
    for name in cycle:
        if phases[name].same_cohort:
            both = hypot(1 / draws[-1].multiplier, 1 / spends[name].multiplier)
            draws[-1] = replace(draws[-1], multiplier=1 / both)
        else:
            draws.append(spends[name])
        after.append(tuple(draws))
    again = tuple(k for k, name in enumerate(cycle, 1) if phases[name].same_cohort)
    return _opened(spends[cycle[0]], delta, tuple(after), again)


def _unsampled(spend: Spend) -> Spend:
    """Return what is spent towards those who know who takes part."""
    return replace(spend, sampling="fixed" if spend.sampling == "fixed" else "none", rate=1.0)


def own_spend(event: Event, select: Select, parties: int) -> Spend:
    """Return what a party spends itself in one answer: its own sums show it who takes part, so that it claims no
    sampling. That it answers is told, so neighbours are a party that gives something and one that gives nothing.
    """
    spend = _of_parties(event, select, parties, steady=False)
    return Spend(spend.multiplier / spend.sensitivity, told=True)


def _of_parties(event: Event, select: Select, parties: int, steady: bool) -> Spend:
    where, multiplier = event.where, event.multiplier
    if where == "local":  # whoever sees a report knows whose it is: no sampling hides it
        return Spend(multiplier, mechanism="local", population=parties)
    if where == "tree":
        epoch = select.sampling(parties).epoch
        if epoch is None or event.every != epoch:
            name = type(select).__name__
            remedy = f"use TreeNoise(every={epoch})" if epoch else "select with RoundRobin()"
            raise Mismatch(f"a tree lasts {event.every} rounds, and {name} does not promise that in these no party "
                           f"takes part twice: {remedy}")  # fmt: skip
        return Spend(multiplier, mechanism="tree", epoch=epoch, population=parties)
    sampling, rate = select.sampling(parties)[:2]
    if sampling == "poisson":
        return Spend(multiplier, "poisson", rate or 1.0, population=parties)
    number = select.expected(parties)
    if sampling == "fixed" and steady and number < parties:
        return Spend(multiplier, "fixed", number / parties, population=parties)
    if sampling == "none":
        return Spend(multiplier, population=parties)
    # Nothing is amplified, and who leaves makes room for another: vectors are replaced, not removed.
    return Spend(multiplier, "fixed", 1.0, population=parties)


def _of_examples(method: Method, sizes: Array, rounds: int, deltas: Mapping[str, float]) -> Spend:
    """Spend what the party spends that spends most, should it take part in every round."""
    multiplier = method.example_dp.multiplier
    if not multiplier > 0:
        raise Mismatch("private training with multiplier 0 adds no noise and protects nothing: leave `private` out")
    delta = _delta("example", max(int(sizes.sum()), 2), deltas)
    return max(_of_sizes(method, sizes), key=lambda spend: Account(spend, delta).epsilon(rounds))


def _of_sizes(method: Method, sizes: Array) -> Iterator[Spend]:
    """Yield spends of which one is at least that of each party.

    Of parties with as many steps the smallest spends most, since it samples at the highest rate. Where there are very
    many, those next to each other count as one with the highest rate and the most steps of them.
    """
    smallest = dict[int, Spend]()
    for n in np.unique(sizes[sizes > 0]).tolist():
        spend = example_spend(method, n)
        smallest.setdefault(spend.times, spend)
    steps = sorted(smallest)
    for some in np.array_split(steps, min(len(steps), _SIZES)):
        worst = max((smallest[k] for k in some.tolist()), key=lambda spend: spend.rate)
        yield replace(worst, times=int(some[-1]))


def example_spend(method: Method, n: int) -> Spend:
    """Return what one answer of a party with n examples spends of each of them. The number n is told: an example that
    gives nothing is what it is compared with, not one that is not there.
    """
    rate, steps = method.example_steps(n)
    sampling: SamplingKind = "poisson" if rate < 1 else "none"
    return Spend(method.example_dp.multiplier, sampling, rate, "example", times=steps, told=True)


def calibrated(ledger: Ledger, epsilon: float, rounds: int) -> float:
    """Return the smallest multiplier of three digits with which so many rounds stay within ε, all else as it is.

    It is that of the first phase that a round asks; all others keep their proportion to it.
    """
    from atoll.privacy.calibrate import smallest

    account, asks = ledger.accounts[0], ledger.planned(rounds)
    if asks is None:
        raise Mismatch(
            "the method decides as it runs how often a round asks, so that no noise is known to be enough for all "
            "rounds: end the run with Budget(epsilon) instead"
        )
    return smallest(lambda z: account.scaled(z / account.spend.multiplier), epsilon, asks)
