"""Random cohorts: everybody, a fraction, a count, Poisson, by size; and asking more than are needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from atoll.core.effects import Cohort
from atoll.core.keys import rng, uniform
from atoll.core.method import History, Pick, Roster, Select


def _choose(m: int, t: int, roster: Roster, seed: int) -> Pick:
    chosen = rng(seed, "select", t).choice(len(roster), min(m, len(roster)), replace=False, shuffle=False)
    return Pick(_named(np.sort(chosen), roster))


def _named(at: Cohort, roster: Roster) -> Cohort:
    return at if roster.online is None else roster.online[at]


def asked(select: Any, parties: int) -> int:
    """Say how many parties a select asks in a round: as many as it expects to hear, unless it says more."""
    return int(select.asked(parties) if hasattr(select, "asked") else select.expected(parties))


def _some(number: int) -> None:
    if number < 1:
        raise ValueError(f"number={number}: ask at least one party")


def _share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value}: a fraction is above 0 and at most 1")


@dataclass(frozen=True)
class All:
    """Everybody who is online, every round."""

    rate = 1.0
    sampling = "none"

    def expected(self, parties: int) -> int:
        return parties

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        return Pick(_named(np.arange(len(roster)), roster))


@dataclass(frozen=True)
class Uniform:
    """A fixed fraction C of the parties, at least one, uniformly without replacement (McMahan's C)."""

    fraction: float = 0.1
    sampling = "fixed"

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction}: a fraction is from 0 (one party) to 1")

    @property
    def rate(self) -> float | None:
        return self.fraction

    def expected(self, parties: int) -> int:
        return max(round(self.fraction * parties), 1)

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        return _choose(self.expected(len(roster.sizes)), t, roster, seed)


@dataclass(frozen=True)
class Count:
    """A fixed number of parties, uniformly without replacement."""

    number: int = 10
    rate = None
    sampling = "fixed"

    def __post_init__(self) -> None:
        _some(self.number)

    def expected(self, parties: int) -> int:
        return min(self.number, parties)

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        return _choose(self.number, t, roster, seed)


@dataclass(frozen=True)
class InTurn:
    """A fixed number of parties in turn, in an order that is drawn anew when all have had theirs."""

    number: int = 10
    rate = None

    def __post_init__(self) -> None:
        _some(self.number)

    def expected(self, parties: int) -> int:
        return min(self.number, parties)

    def epoch(self, parties: int) -> int:
        """Rounds in which every party has one turn."""
        return -(-parties // self.number)

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        parties = len(roster.sizes)
        epoch, turn = divmod(t, self.epoch(parties))
        order = rng(seed, "in turn", epoch).permutation(parties)
        mine = np.sort(order[turn * self.number : (turn + 1) * self.number])
        return Pick(mine if roster.online is None else np.intersect1d(mine, roster.online))


@dataclass(frozen=True)
class Poisson:
    """Every party by its own coin of this rate: cohorts vary in size, privacy is amplified as accountants assume."""

    rate: float = 0.1
    sampling = "poisson"

    def __post_init__(self) -> None:
        _share("rate", self.rate)

    def expected(self, parties: int) -> int:
        return max(round(self.rate * parties), 1)

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        # How many heads, then who: the same distribution as a coin each, at the cost of the cohort only.
        heads = int(rng(seed, "poisson", t).binomial(len(roster), self.rate))
        return _choose(heads, t, roster, seed) if heads else Pick(np.arange(0))


@dataclass(frozen=True)
class BySize:
    """A fixed number of parties, without replacement, drawn with odds in proportion to their number of samples."""

    number: int = 10
    rate = None

    def __post_init__(self) -> None:
        _some(self.number)

    def expected(self, parties: int) -> int:
        return min(self.number, parties)

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        who = np.arange(len(roster.sizes)) if roster.online is None else roster.online
        # Efraimidis and Spirakis: the smallest of Exp(1)/weight are a weighted sample without replacement.
        race = -np.log1p(-uniform(seed, "by size", t, who)) / roster.sizes[who]
        m = min(self.number, len(who))
        return Pick(np.sort(who[np.argpartition(race, m - 1)[:m]])) if m else Pick(np.arange(0))


@dataclass(frozen=True)
class Over:
    """Ask more parties than are needed and go on when enough have answered (1.3: 130 %)."""

    select: Select
    factor: float = 1.3
    rate = None

    def __post_init__(self) -> None:
        if getattr(self.select, "counts", False):
            name = type(self.select).__name__
            raise ValueError(f"Over({name}): parties outside of its own choice would be asked; use {name} alone")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor}: over-selection asks at least as many as are needed, 1.0 or more")

    def expected(self, parties: int) -> int:
        return self.select.expected(parties)

    def asked(self, parties: int) -> int:
        """Parties that are asked where so many are expected to be heard."""
        return self._more(asked(self.select, parties), parties)

    def _more(self, goal: int, parties: int) -> int:
        return min(ceil(goal * self.factor), parties)

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        goal = self.select.pick(t, roster, history, seed).cohort
        extra = self._more(len(goal), len(roster)) - len(goal)
        rest = np.setdiff1d(_named(np.arange(len(roster)), roster), goal, assume_unique=True)
        more = rng(seed, "over", t).choice(rest, extra, replace=False) if extra > 0 else goal[:0]
        return Pick(np.sort(np.concatenate([goal, more])), len(goal))
