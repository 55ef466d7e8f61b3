"""When parties are there: who is online in a round, and who is lost in it. Simulated worlds, for simulators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from atoll.core.effects import Cohort
from atoll.core.given import Part
from atoll.core.keys import uniform
from atoll.core.tree import Array
from atoll.core.wire import Mismatch


class Availability(Part, Protocol):
    """Who is online in round t (None: everybody), and which share of the asked never answers."""

    @property
    def drop(self) -> float: ...
    def online(self, t: int, parties: int, seed: int) -> Cohort | None: ...

    @property
    def steady(self) -> bool:
        """Whether everybody is online in every round."""
        return False


def lost(who: Cohort, drop: float, t: int, seed: int) -> Array:
    """Tell which of the asked parties never answer in this round."""
    return np.asarray(uniform(seed, "lost", t, who) < drop)


def latency(who: Cohort, t: int, seed: int) -> Array:
    """Draw simulated answer times: each party has a speed of its own (lognormal) and good and bad rounds."""
    speed = np.sqrt(-2 * np.log1p(-uniform(seed, "speed", who))) * np.cos(2 * np.pi * uniform(seed, "speed2", who))
    return np.asarray(np.exp(speed) * (1 + uniform(seed, "latency", t, who)))


def _check(drop: float) -> None:
    if not 0 <= drop < 1:
        raise Mismatch(f"drop={drop}: the share that is lost in a round is at least 0 and below 1")


@dataclass(frozen=True)
class Always(Availability):
    """All parties are online; a fraction `drop` of the asked parties does not answer.

    Args:
        drop: fraction of the asked parties that does not answer, at random in each round; 0 or more, below 1. Default
            0.

    Example:
        >>> import atoll
        >>> atoll.Always(drop=0.1).online(0, 5, seed=0) is None  # None: everybody
        True
    """

    drop: float = 0.0
    steady = True

    def __post_init__(self) -> None:
        _check(self.drop)

    def online(self, t: int, parties: int, seed: int) -> Cohort | None:
        return None


@dataclass(frozen=True)
class Flaky(Availability):
    """Each party is online with this probability, independently in every round.

    Args:
        probability: of being online, above 0 and at most 1. Default 0.8.
        drop: fraction of the asked parties that does not answer; 0 or more, below 1. Default 0.

    Example:
        >>> import atoll
        >>> 400 < len(atoll.Flaky(0.5).online(0, 1000, seed=0)) < 600
        True
    """

    probability: float = 0.8
    drop: float = 0.0

    def __post_init__(self) -> None:
        _check(self.drop)
        if not 0 < self.probability <= 1:
            raise Mismatch(f"probability={self.probability}: above 0 and at most 1")

    def online(self, t: int, parties: int, seed: int) -> Cohort | None:
        return np.nonzero(uniform(seed, "online", t, np.arange(parties)) < self.probability)[0]


@dataclass(frozen=True)
class Diurnal(Availability):
    """Parties follow a daily cycle: the probability of being online is between `low` and `high`, over `period` rounds.

    Each party has its own time zone.

    Args:
        low: smallest probability of being online, above 0. Default 0.1.
        high: largest probability of being online, at least `low` and at most 1. Default 0.4.
        period: rounds of one day, 1 or more. Default 24.
        drop: fraction of the asked parties that does not answer; 0 or more, below 1. Default 0.

    Example:
        >>> import atoll
        >>> 50 < len(atoll.Diurnal(0.1, 0.4).online(0, 1000, seed=0)) < 450
        True
    """

    low: float = 0.1
    high: float = 0.4
    period: int = 24
    drop: float = 0.0

    def __post_init__(self) -> None:
        _check(self.drop)
        if not 0 < self.low <= self.high <= 1:
            raise Mismatch(f"low={self.low}, high={self.high}: both above 0, at most 1, low not above high")
        if self.period < 1:
            raise Mismatch(f"period={self.period}: a day has at least one round")

    def online(self, t: int, parties: int, seed: int) -> Cohort | None:
        who = np.arange(parties)
        zone = uniform(seed, "zone", who)  # everybody lives somewhere
        chance = self.low + (self.high - self.low) * (0.5 - 0.5 * np.cos(2 * np.pi * (t / self.period + zone)))
        return np.nonzero(uniform(seed, "online", t, who) < chance)[0]


@dataclass(frozen=True)
class Trace(Availability):
    """Read who is online from a CSV file with columns party,first,last: the rounds, from 1, in which a party is online.

    Args:
        file: path of the CSV file; a first line that is not a number is a header. A party can have several lines.
        drop: fraction of the asked parties that does not answer; 0 or more, below 1. Default 0.

    Example:
        >>> import atoll, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "trace.csv")
        >>> _ = file.write_text("party,first,last")
        >>> len(atoll.Trace(str(file)).online(0, 10, seed=0))
        0
    """

    file: str
    drop: float = 0.0

    def __post_init__(self) -> None:
        _check(self.drop)

    def online(self, t: int, parties: int, seed: int) -> Cohort | None:
        spans = _spans(self.file)
        there = spans[(spans[:, 1] <= t + 1) & (t + 1 <= spans[:, 2]), 0]
        return np.unique(there[there < parties])


@lru_cache(maxsize=8)
def _spans(file: str) -> Array:
    rows = []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Mismatch(f"availability: cannot read {file}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        cells = line.split(",")
        if number == 1 and not cells[0].strip().isdigit():
            continue  # the header
        try:
            party, first, last = (int(cell) for cell in cells)
        except ValueError:
            raise Mismatch(f"{file}, line {number}: '{line}' is not party,first,last in whole numbers") from None
        rows.append((party, first, last))
    return np.asarray(rows, np.int64).reshape(-1, 3)
