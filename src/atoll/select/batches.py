"""Selections for privacy over many rounds: whole batches of parties, so that no sum ever tells the members apart.

So, Ali, Güler, Jiao, Avestimehr: Securing Secure Aggregation (Multi-RoundSecAgg), AAAI 2023, arXiv 2106.03328.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, gcd

import numpy as np

from atoll.core.effects import Cohort
from atoll.core.keys import rng
from atoll.core.method import History, Pick, Roster
from atoll.core.tree import Array

_MOST = 10_000_000  # numbers of a family that is written down


def family_size(parties: int, number: int, size: int) -> int:
    """Count the cohorts of `number` parties that are unions of batches of `size`; size 1: all cohorts there are."""
    _divides(number, size)
    _fits(parties, number, size)
    return comb(parties // size, number // size)


def family(parties: int, number: int, size: int) -> Array:
    """Write all these cohorts down, a row of zeros and ones each, the batches in the order of the parties."""
    rows = family_size(parties, number, size)
    if rows * parties > _MOST:
        raise ValueError(f"a family of {rows} rows is too long to write down: family_size counts it, no pick needs it")
    chosen = np.array(list(combinations(range(parties // size), number // size)))
    batches = np.zeros((rows, parties // size), np.uint8)
    np.put_along_axis(batches, chosen, 1, axis=1)
    return batches.repeat(size, axis=1)


@dataclass(frozen=True)
class Batches:
    """Whole batches of `size` parties, cut once, `number` parties in all, the least served first; or nobody.

    The server learns sums over batches at best. `order="given"` cuts in the order of the parties, for batches by hand.
    """

    number: int = 12
    size: int = 4
    order: str = "shuffled"
    rate = None
    counts = True
    whole = True

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"size={self.size}: a batch of one hides nobody; use 2 or more, or LeastServed")
        _divides(self.number, self.size)
        if self.order not in ("shuffled", "given"):
            raise ValueError(f"order='{self.order}': batches are cut from parties 'shuffled' or as 'given'")

    def expected(self, parties: int) -> int:
        _fits(parties, self.number, self.size)
        return self.number

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        _fits(len(roster.sizes), self.number, self.size)
        batches = _cut(len(roster.sizes), self.size, seed if self.order == "shuffled" else None)
        return _whole(batches, self.number, t, roster, history, seed)


@dataclass(frozen=True)
class Partition:
    """Fixed groups of `number` parties, the least served that is whole; or nobody. Most private, and often nobody."""

    number: int = 10
    rate = None
    counts = True
    whole = True

    def __post_init__(self) -> None:
        if self.number < 2:
            raise ValueError(f"number={self.number}: a group of one hides nobody; use 2 or more")

    def expected(self, parties: int) -> int:
        _fits(parties, self.number, self.number)
        return self.number

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        _fits(len(roster.sizes), self.number, self.number)
        return _whole(_cut(len(roster.sizes), self.number, seed), self.number, t, roster, history, seed)


@dataclass(frozen=True)
class LeastServed:
    """A fixed number of the parties that are online, the least served first, ties at random. Fair, and not private."""

    number: int = 10
    rate = None
    counts = True

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"number={self.number}: ask at least one party")

    def expected(self, parties: int) -> int:
        return min(self.number, parties)

    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick:
        who = np.arange(len(roster.sizes)) if roster.online is None else roster.online
        first = _least(who, _served(roster, history)[who], t, seed)[: self.number]
        return Pick(np.sort(first))


@lru_cache(maxsize=8)
def _cut(parties: int, size: int, seed: int | None) -> Array:
    """Return the batches, a row of parties each. They depend on nothing that changes during a run."""
    order = np.arange(parties) if seed is None else rng(seed, "batch order").permutation(parties)
    order.flags.writeable = False  # one array for all rounds
    return order.reshape(-1, size)


def _whole(batches: Array, number: int, t: int, roster: Roster, history: History, seed: int) -> Pick:
    """Choose whole batches directly: the family of their unions may have millions of rows."""
    there = np.full(len(roster.sizes), roster.online is None)
    if roster.online is not None:
        there[roster.online] = True
    whole = np.nonzero(there[batches].all(axis=1))[0]
    wanted = number // batches.shape[1]
    if len(whole) < wanted:
        return Pick(np.arange(0))
    served = _served(roster, history)[batches[whole]].min(axis=1)
    return Pick(np.sort(batches[_least(whole, served, t, seed)[:wanted]], axis=None))


def _served(roster: Roster, history: History) -> Array:
    return np.zeros(len(roster.sizes), np.int64) if history.served is None else history.served


def _least(who: Cohort, served: Array, t: int, seed: int) -> Array:
    """Sort by how often they were asked, ties at random."""
    return who[np.lexsort((rng(seed, "batches", t).random(len(who)), served))]


def _divides(number: int, size: int) -> None:
    if size < 1:
        raise ValueError(f"size={size}: a batch has at least one party")
    if number < size:
        raise ValueError(f"number={number}, size={size}: a cohort is at least one batch, so number is {size} or more")
    if number % size:
        below = number - number % size
        near = f"{below} or {below + size}"
        raise ValueError(f"number={number}, size={size}: a cohort is made of whole batches; take number {near}")


def _fits(parties: int, number: int, size: int) -> None:
    if number > parties:
        raise ValueError(f"number={number}: there are only {parties} parties; take at most that many")
    if parties % size:
        below = parties - parties % size
        near = [str(below), str(below + size)] if below >= number else [str(below + size)]
        common = gcd(parties, number)
        sizes = [str(d) for d in range(2, common + 1) if common % d == 0]
        other = f", or size {' or '.join(sizes)}" if sizes and size != number else ""
        raise ValueError(
            f"size={size}: {parties} parties cannot be cut into whole batches; use {' or '.join(near)} parties{other}"
        )
