"""Random cohorts: everybody, a fraction, a count, Poisson, by size; and asking more than are needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from atoll.core.effects import Cohort, Replies
from atoll.core.errors import Mismatch
from atoll.core.method import History, Pick, Population, Sampling, Select
from atoll.core.tree import Tree
from atoll.core.world import World


def _choose(m: int, rng: np.random.Generator, population: Population) -> Pick:
    chosen = rng.choice(len(population), min(m, len(population)), replace=False, shuffle=False)
    return Pick(_named(np.sort(chosen), population))


def _private_rng(world: World, purpose: str, t: int) -> np.random.Generator:
    """Return a generator that nobody else can repeat: an ε that is amplified by sampling needs a secret sample."""
    source = world.private(purpose, t)
    return np.random.default_rng(source.words(8, "uint32")) if source.secret else source.generator()


def _named(at: Cohort, population: Population) -> Cohort:
    return at if population.online is None else population.online[at]


def _some(number: int) -> None:
    if number < 1:
        raise Mismatch(f"number={number}: ask at least one party")


def at_most(number: int, parties: int) -> int:
    """Return a number of parties to select; refuse one that there are not."""
    if number > parties:
        raise Mismatch(f"select: number={number}: there are only {parties} parties; take at most that many, or All()")
    return number


def _share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise Mismatch(f"{name}={value}: a fraction is above 0 and at most 1")


@dataclass(frozen=True)
class All(Select):
    """All parties that are online, in every round.

    Example:
        >>> import atoll
        >>> atoll.All().expected(100)
        100
    """

    def expected(self, parties: int) -> int:
        return parties

    def sampling(self, parties: int) -> Sampling:
        return Sampling("none", 1.0)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        return Pick(_named(np.arange(len(population)), population))


@dataclass(frozen=True)
class Uniform(Select):
    """A fixed fraction of all parties, at least one, uniformly without replacement (C of McMahan et al. 2017).

    Args:
        fraction: fraction of all parties, from 0 (one party) to 1. Default 0.1.

    Example:
        >>> import atoll
        >>> atoll.Uniform(0.1).expected(200)
        20
    """

    fraction: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise Mismatch(f"fraction={self.fraction}: a fraction is from 0 (one party) to 1")

    def expected(self, parties: int) -> int:
        return max(round(self.fraction * parties), 1)

    def sampling(self, parties: int) -> Sampling:
        return Sampling("fixed", self.fraction)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        return _choose(self.expected(len(population.sizes)), world.public_rng("select", t), population)


@dataclass(frozen=True)
class Count(Select):
    """A fixed number of parties, uniformly without replacement.

    Args:
        number: parties in a round, 1 or more; if fewer are online, all of them. Default 10.

    Example:
        >>> import atoll
        >>> atoll.Count(10).expected(200)
        10
    """

    number: int = 10

    def __post_init__(self) -> None:
        _some(self.number)

    def expected(self, parties: int) -> int:
        return at_most(self.number, parties)

    def sampling(self, parties: int) -> Sampling:
        return Sampling("fixed")

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        return _choose(self.number, world.public_rng("select", t), population)


@dataclass(frozen=True)
class RoundRobin(Select):
    """A fixed number of parties; every party once before any party twice, in an order that is drawn anew each time.

    A party that is offline when it is due is not asked.

    Args:
        number: parties in a round, 1 or more. Default 10.

    Example:
        >>> import atoll
        >>> atoll.RoundRobin(6).sampling(60).epoch  # rounds in which every party is due once
        10
    """

    number: int = 10

    def __post_init__(self) -> None:
        _some(self.number)

    def expected(self, parties: int) -> int:
        return at_most(self.number, parties)

    def sampling(self, parties: int) -> Sampling:
        return Sampling("other", epoch=-(-parties // self.number))  # rounds in which every party has one turn

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        parties = len(population.sizes)
        epoch, turn = divmod(t, -(-parties // self.number))
        order = world.public_rng("in turn", epoch).permutation(parties)
        mine = np.sort(order[turn * self.number : (turn + 1) * self.number])
        return Pick(mine if population.online is None else np.intersect1d(mine, population.online))


@dataclass(frozen=True)
class Poisson(Select):
    """Include each party independently with probability `rate`: cohorts vary in size, as accountants assume.

    A round can be empty. Between real parties the server draws cohorts from its operating system, so that nobody can
    compute them from the seed.

    Args:
        rate: probability of each party, above 0 and at most 1. Default 0.1.

    Example:
        >>> import atoll
        >>> atoll.Poisson(0.2).expected(60)
        12
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        _share("rate", self.rate)

    def expected(self, parties: int) -> int:
        return max(round(self.rate * parties), 1)

    def sampling(self, parties: int) -> Sampling:
        return Sampling("poisson", self.rate, varies=True)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        # How many, then who: the same distribution as one draw for each party, at the cost of the cohort only.
        number = int(_private_rng(world, "poisson", t).binomial(len(population), self.rate))
        return _choose(number, _private_rng(world, "select", t), population) if number else Pick(np.arange(0))


@dataclass(frozen=True)
class BySize(Select):
    """A fixed number of parties, without replacement, with probabilities proportional to their number of samples.

    Args:
        number: parties in a round, 1 or more; if fewer are online, all of them. Default 10.

    Example:
        >>> import atoll
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.BySize(5), atoll.Channel([atoll.Average()]))
        >>> job.select.expected(100)
        5
    """

    number: int = 10

    def __post_init__(self) -> None:
        _some(self.number)

    def expected(self, parties: int) -> int:
        return at_most(self.number, parties)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        who = np.arange(len(population.sizes)) if population.online is None else population.online
        # Efraimidis and Spirakis: the smallest of Exp(1)/weight are a weighted sample without replacement.
        race = -np.log1p(-world.public_uniform("by size", t, who)) / population.sizes[who]
        m = min(self.number, len(who))
        return Pick(np.sort(who[np.argpartition(race, m - 1)[:m]])) if m else Pick(np.arange(0))


@dataclass(frozen=True)
class Oversample(Select):
    """Ask more parties than `select` picks; the round ends when as many as it picked have answered.

    Args:
        select: which parties, and how many answers a round needs. Selects of whole batches are refused.
        factor: parties that are asked for each answer that is needed, 1.0 or more. Default 1.3.

    Example:
        >>> import atoll
        >>> select = atoll.Oversample(atoll.Count(10), factor=1.5)
        >>> select.expected(100), select.asked(100)
        (10, 15)
    """

    select: Select
    factor: float = 1.3

    def __post_init__(self) -> None:
        if self.select.exact:
            name = type(self.select).__name__
            raise Mismatch(f"Oversample({name}): parties outside of its own choice would be asked; use {name} alone")
        if self.factor < 1:
            raise Mismatch(f"factor={self.factor}: over-selection asks at least as many as are needed, 1.0 or more")

    def expected(self, parties: int) -> int:
        return self.select.expected(parties)

    def asked(self, parties: int) -> int:
        return self._more(self.select.asked(parties), parties)

    def _more(self, goal: int, parties: int) -> int:
        return min(ceil(goal * self.factor), parties)

    def sampling(self, parties: int) -> Sampling:
        return Sampling(varies=self.select.sampling(parties).varies)

    def start(self, population: Population) -> Tree:
        return self.select.start(population)

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        return self.select.learn(memory, pick, replies)

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        goal = self.select.pick(t, population, history, memory, world).cohort
        extra = self._more(len(goal), len(population)) - len(goal)
        rest = np.setdiff1d(_named(np.arange(len(population)), population), goal, assume_unique=True)
        more = world.public_rng("over", t).choice(rest, extra, replace=False) if extra > 0 else goal[:0]
        return Pick(np.sort(np.concatenate([goal, more])), len(goal))
