"""Selections for privacy over many rounds: whole batches of parties, so that no sum ever tells the members apart.

So, Ali, Güler, Jiao, Avestimehr: Securing Secure Aggregation (Multi-RoundSecAgg), AAAI 2023, arXiv 2106.03328.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, gcd

import numpy as np

from atoll.core.effects import Cohort, Replies
from atoll.core.errors import Mismatch
from atoll.core.method import History, Pick, Population, Sampling, Select
from atoll.core.tree import Array, Tree
from atoll.core.world import World
from atoll.select.sample import at_most

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
        raise Mismatch(f"a family of {rows} rows is too long to write down: family_size counts it, no pick needs it")
    chosen = np.array(list(combinations(range(parties // size), number // size)))
    batches = np.zeros((rows, parties // size), np.uint8)
    np.put_along_axis(batches, chosen, 1, axis=1)
    return batches.repeat(size, axis=1)


@dataclass(frozen=True)
class _Fair(Select):
    """Asks a number of parties, those first that were asked least."""

    number: int = 10

    def start(self, population: Population) -> Tree:
        return {"served": np.zeros(len(population.sizes), np.int64)}

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        return served(memory, pick)

    @property
    def exact(self) -> bool:
        return True


@dataclass(frozen=True)
class _Whole(_Fair):
    """Asks whole batches of parties."""

    @property
    @abstractmethod
    def together(self) -> int:
        """Parties of a batch."""

    @abstractmethod
    def batches(self, parties: int, world: World) -> Array: ...

    def expected(self, parties: int) -> int:
        _fits(parties, self.number, self.together)
        return self.number

    def sampling(self, parties: int) -> Sampling:
        return Sampling(whole=True)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        _fits(len(population.sizes), self.number, self.together)
        return _whole(self.batches(len(population.sizes), world), self.number, t, population, memory, world)


@dataclass(frozen=True)
class Batches(_Whole):
    """Whole batches of `size` parties, fixed for the run, those that took part least first. A round can be empty.

    The server learns sums over batches at best (Multi-RoundSecAgg, So et al. 2023). Use it with a hidden sum.

    Args:
        number: parties in a round, a multiple of `size`. Default 12.
        size: parties of a batch, 2 or more; it must divide the number of all parties. Default 4.
        order: "shuffled" (the default) divides the parties at random, "given" in their own order.

    Example:
        >>> import atoll
        >>> from atoll.select.metrics import multi_round
        >>> multi_round(atoll.Batches(8, 4), parties=40, rounds=50).privacy
        4
    """

    number: int = 12
    size: int = 4
    order: str = "shuffled"

    def __post_init__(self) -> None:
        if self.size < 2:
            raise Mismatch(f"size={self.size}: a batch of one hides nobody; use 2 or more, or LeastServed")
        _divides(self.number, self.size)
        if self.order not in ("shuffled", "given"):
            raise Mismatch(f"order='{self.order}': batches are cut from parties 'shuffled' or as 'given'")

    @property
    def together(self) -> int:
        return self.size

    def batches(self, parties: int, world: World) -> Array:
        return _cut(parties, self.size, world if self.order == "shuffled" else None)


@dataclass(frozen=True)
class Partition(_Whole):
    """One fixed group of `number` parties, the complete group that took part least. A round can be empty.

    This is the most private select over many rounds. A group with one party offline cannot take part.

    Args:
        number: parties of a group, 2 or more; it must divide the number of all parties. Default 10.

    Example:
        >>> import atoll
        >>> from atoll.select.metrics import multi_round
        >>> multi_round(atoll.Partition(8), parties=40, rounds=50).privacy
        8
    """

    number: int = 10

    def __post_init__(self) -> None:
        if self.number < 2:
            raise Mismatch(f"number={self.number}: a group of one hides nobody; use 2 or more")

    @property
    def together(self) -> int:
        return self.number

    def batches(self, parties: int, world: World) -> Array:
        return _cut(parties, self.number, world)


@dataclass(frozen=True)
class LeastServed(_Fair):
    """A fixed number of the parties that are online, those that took part least first, ties at random.

    It has the smallest fairness gap and no privacy over many rounds.

    Args:
        number: parties in a round, 1 or more; if fewer are online, all of them. Default 10.

    Example:
        >>> import atoll
        >>> from atoll.select.metrics import multi_round
        >>> multi_round(atoll.LeastServed(8), parties=40, rounds=50).fairness_gap
        0.0
    """

    number: int = 10

    def __post_init__(self) -> None:
        if self.number < 1:
            raise Mismatch(f"number={self.number}: ask at least one party")

    def expected(self, parties: int) -> int:
        return at_most(self.number, parties)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        who = np.arange(len(population.sizes)) if population.online is None else population.online
        first = _least(who, _served(population, memory)[who], t, world)[: self.number]
        return Pick(np.sort(first))


@lru_cache(maxsize=8)
def _cut(parties: int, size: int, world: World | None) -> Array:
    """Return the batches, a row of parties each. They depend on nothing that changes during a run."""
    order = np.arange(parties) if world is None else world.public_rng("batch order").permutation(parties)
    order.flags.writeable = False  # one array for all rounds
    return order.reshape(-1, size)


def _whole(batches: Array, number: int, t: int, population: Population, memory: Tree, world: World) -> Pick:
    """Choose whole batches directly: the family of their unions may have millions of rows."""
    there = np.full(len(population.sizes), population.online is None)
    if population.online is not None:
        there[population.online] = True
    whole = np.nonzero(there[batches].all(axis=1))[0]
    wanted = number // batches.shape[1]
    if len(whole) < wanted:
        return Pick(np.arange(0))
    served = _served(population, memory)[batches[whole]].min(axis=1)
    return Pick(np.sort(batches[_least(whole, served, t, world)[:wanted]], axis=None))


def served(memory: Tree, pick: Pick) -> Tree:
    """Count whom a round asked."""
    return {"served": memory["served"] + np.bincount(pick.cohort, minlength=len(memory["served"]))}


def _served(population: Population, memory: Tree) -> Array:
    return memory["served"] if "served" in memory else np.zeros(len(population.sizes), np.int64)


def _least(who: Cohort, served: Array, t: int, world: World) -> Array:
    """Sort by how often they were asked, ties at random."""
    return who[np.lexsort((world.public_rng("batches", t).random(len(who)), served))]


def _divides(number: int, size: int) -> None:
    if size < 1:
        raise Mismatch(f"size={size}: a batch has at least one party")
    if number < size:
        raise Mismatch(f"number={number}, size={size}: a cohort is at least one batch, so number is {size} or more")
    if number % size:
        below = number - number % size
        near = f"{below} or {below + size}"
        raise Mismatch(f"number={number}, size={size}: a cohort is made of whole batches; take number {near}")


def _fits(parties: int, number: int, size: int) -> None:
    at_most(number, parties)
    if parties % size:
        below = parties - parties % size
        near = [str(below), str(below + size)] if below >= number else [str(below + size)]
        common = gcd(parties, number)
        sizes = [str(d) for d in range(2, common + 1) if common % d == 0]
        other = f", or size {' or '.join(sizes)}" if sizes and size != number else ""
        raise Mismatch(
            f"select: size={size}: {parties} parties cannot be cut into whole batches; use {' or '.join(near)} "
            f"parties{other}"
        )
