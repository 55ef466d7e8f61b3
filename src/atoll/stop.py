"""Reasons to end a run before its last round. Each sees the history only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atoll.core.method import History, Stop, lower_is_better
from atoll.core.wire import Mismatch


def _curve(history: History, metric: str) -> tuple[tuple[int, float], ...]:
    if history.curves and metric not in history.curves:
        known = ", ".join(sorted(history.curves))
        raise Mismatch(f"stop: nothing measures '{metric}'; this run measures {known}")
    return history.curves.get(metric, ())


@dataclass(frozen=True)
class Target:
    """Stop when a metric has reached a value."""

    metric: str = "test.accuracy"
    value: float = 0.99

    def __call__(self, history: History) -> str | None:
        curve = _curve(history, self.metric)
        if not curve or not history.t:
            return None
        t, value = curve[-1]
        reached = value <= self.value if lower_is_better(self.metric) else value >= self.value
        return f"{self.metric} reached {value:.4g} in round {t} (target {self.value:g})" if reached else None


@dataclass(frozen=True)
class Budget:
    """Stop before the round that would spend more than ε at this δ (none: N^-1.1 for N units).

    `unit` names what the budget is for, "party" or "example", where noise protects both.
    """

    epsilon: float
    delta: float | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"Budget(epsilon={self.epsilon}): a budget is above 0")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"Budget(delta={self.delta}): a delta is above 0 and below 1")
        if self.unit not in (None, "party", "example"):
            raise ValueError(f"Budget(unit={self.unit!r}): a unit is a 'party' or an 'example'")

    def __call__(self, history: History) -> str | None:
        raise Mismatch("Budget() counts what noise spends, and is bound to it when a job is assembled")

    def bound(self, ledger: Any) -> Stop:
        """Return the stop that knows what a round spends."""
        if ledger is None:
            raise Mismatch("Budget() counts what noise spends, and this job adds none: put Gaussian() into its stages")
        account = ledger.of(self.unit)
        allowed = account.rounds_within(self.epsilon)
        if not allowed:
            one = account.epsilon(1)
            raise Mismatch(
                f"one round alone spends epsilon {one:.3g} of a budget of {self.epsilon:g}: add more noise "
                f"(`atoll calibrate JOB --epsilon {self.epsilon:g}` says how much)"
            )
        spent = f"the budget of epsilon {self.epsilon:g} at delta {account.delta:g} allows {allowed:,} rounds"
        return lambda history: spent if history.t >= allowed else None


@dataclass(frozen=True)
class Patience:
    """Stop when a metric has not improved by more than `least` for this many rounds."""

    metric: str = "test.loss"
    rounds: int = 20
    least: float = 0.0

    def __call__(self, history: History) -> str | None:
        curve = _curve(history, self.metric)
        sign = -1.0 if lower_is_better(self.metric) else 1.0
        best, when = float("-inf"), 0
        for t, value in curve:
            if sign * value > best + self.least:
                best, when = sign * value, t
        waited = history.t - when
        return (
            f"{self.metric} has not improved for {waited} rounds (patience {self.rounds})"
            if (curve and waited >= self.rounds)
            else None
        )


@dataclass(frozen=True)
class Still:
    """Stop when a round moves the parameters by less than this: ‖θ_t − θ_{t−1}‖₂ < epsilon."""

    epsilon: float = 1e-4

    def __call__(self, history: History) -> str | None:
        if history.moved is None or history.moved >= self.epsilon:
            return None
        return f"the parameters moved by {history.moved:.3g} in round {history.t} (still below {self.epsilon:g})"


@dataclass(frozen=True)
class WallTime:
    """Stop after this many seconds."""

    seconds: float = 3600.0

    def __call__(self, history: History) -> str | None:
        if history.elapsed < self.seconds:
            return None
        return f"{history.elapsed:.0f} s have passed (wall time {self.seconds:g} s)"
