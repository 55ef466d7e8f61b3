"""Learning rates over rounds: a number, or a frozen record from a round to a number."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Protocol

from atoll.core.errors import Mismatch
from atoll.core.given import Part


class Schedule(Part, Protocol):
    """The learning rate of round t (from 0)."""

    def __call__(self, t: int) -> float: ...


@dataclass(frozen=True)
class Exponential(Schedule):
    """The learning rate start · factor^t.

    Args:
        start: learning rate of the first round, above 0. Default 0.1.
        factor: by which each round multiplies it, above 0. Default 0.99.

    Example:
        >>> import atoll
        >>> atoll.Exponential(start=0.5, factor=0.5)(2)
        0.125
    """

    start: float = 0.1
    factor: float = 0.99

    def __post_init__(self) -> None:
        check_rate(self.start, "start")
        _check_factor(self.factor)

    def __call__(self, t: int) -> float:
        return self.start * self.factor**t


@dataclass(frozen=True)
class Steps(Schedule):
    """A learning rate that is multiplied by `factor` after every `every` rounds.

    Args:
        start: learning rate of the first rounds, above 0. Default 0.1.
        every: rounds between two changes, 1 or more. Default 50.
        factor: by which it is multiplied, above 0. Default 0.1.

    Example:
        >>> import atoll
        >>> schedule = atoll.Steps(start=1.0, every=10, factor=0.5)
        >>> schedule(9), schedule(10)
        (1.0, 0.5)
    """

    start: float = 0.1
    every: int = 50
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_rate(self.start, "start")
        _check_rounds("every", self.every)
        _check_factor(self.factor)

    def __call__(self, t: int) -> float:
        return self.start * self.factor ** (t // self.every)


@dataclass(frozen=True)
class Cosine(Schedule):
    """A learning rate that goes from `start` to `end` along half a cosine over `rounds` rounds, and stays there.

    Args:
        start: learning rate of the first round, above 0. Default 0.1.
        rounds: until `end` is reached, 1 or more. Default 100.
        end: the last learning rate, 0 or more. Default 0.

    Example:
        >>> import atoll
        >>> schedule = atoll.Cosine(start=1.0, rounds=10)
        >>> schedule(0), round(schedule(5), 6), schedule(10)
        (1.0, 0.5, 0.0)
    """

    start: float = 0.1
    rounds: int = 100
    end: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.start, "start")
        _check_rounds("rounds", self.rounds)
        if not 0 <= self.end < float("inf"):
            raise Mismatch(f"end={self.end}: a learning rate does not end below 0")

    def __call__(self, t: int) -> float:
        return self.end + (self.start - self.end) * (0.5 + 0.5 * cos(pi * min(t / self.rounds, 1.0)))


def rate(lr: float | Schedule, t: int) -> float:
    """Read a learning rate that may change over rounds."""
    return lr(t) if callable(lr) else lr


def check_rate(lr: float | Schedule, name: str = "lr") -> None:
    """Refuse a learning rate that is no positive number."""
    if not callable(lr) and not 0 < lr < float("inf"):
        raise Mismatch(f"{name}={lr}: a learning rate is a positive number")


def _check_factor(factor: float) -> None:
    if not 0 < factor < float("inf"):
        raise Mismatch(f"factor={factor}: a learning rate is multiplied by a positive number")


def _check_rounds(name: str, rounds: int) -> None:
    if rounds < 1:
        raise Mismatch(f"{name}={rounds}: a number of rounds is at least 1")
