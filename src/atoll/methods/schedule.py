"""Learning rates over rounds: a number, or a frozen record from a round to a number."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Protocol


class Schedule(Protocol):
    """The learning rate of round t (from 0)."""

    def __call__(self, t: int) -> float: ...


@dataclass(frozen=True)
class Exponential:
    """start · factor^t: a little less every round."""

    start: float = 0.1
    factor: float = 0.99

    def __post_init__(self) -> None:
        check_rate(self.start, "start")
        _check_factor(self.factor)

    def __call__(self, t: int) -> float:
        return self.start * self.factor**t


@dataclass(frozen=True)
class Steps:
    """Multiply by `factor` after every `every` rounds."""

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
class Cosine:
    """From start to end along half a cosine over `rounds` rounds."""

    start: float = 0.1
    rounds: int = 100
    end: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.start, "start")
        _check_rounds("rounds", self.rounds)
        if not 0 <= self.end < float("inf"):
            raise ValueError(f"end={self.end}: a learning rate does not end below 0")

    def __call__(self, t: int) -> float:
        return self.end + (self.start - self.end) * (0.5 + 0.5 * cos(pi * min(t / self.rounds, 1.0)))


def rate(lr: float | Schedule, t: int) -> float:
    """Read a learning rate that may change over rounds."""
    return lr(t) if callable(lr) else lr


def check_rate(lr: float | Schedule, name: str = "lr") -> None:
    """Refuse a learning rate that is no positive number."""
    if not callable(lr) and not 0 < lr < float("inf"):
        raise ValueError(f"{name}={lr}: a learning rate is a positive number")


def _check_factor(factor: float) -> None:
    if not 0 < factor < float("inf"):
        raise ValueError(f"factor={factor}: a learning rate is multiplied by a positive number")


def _check_rounds(name: str, rounds: int) -> None:
    if rounds < 1:
        raise ValueError(f"{name}={rounds}: a number of rounds is at least 1")
