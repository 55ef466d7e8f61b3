"""Reasons to end a run before its last round. Each sees the history only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from atoll.core.errors import Mismatch
from atoll.core.given import number
from atoll.core.method import History, Stop
from atoll.privacy.account import in_epsilon

if TYPE_CHECKING:
    from atoll.privacy.ledger import Ledger


def _curve(history: History, metric: str) -> tuple[tuple[int, float], ...]:
    if history.curves and metric not in history.curves:
        known = ", ".join(sorted(history.curves))
        raise Mismatch(f"stop: nothing measures '{metric}'; this run measures {known}")
    return history.curves.get(metric, ())


@dataclass(frozen=True)
class Target(Stop):
    """Stop when a metric has reached a value, from below or from above as the metric requires.

    Args:
        metric: the split and the metric, such as "test.accuracy". Default "test.accuracy".
        value: the value to reach, in the unit of the metric. Default 0.99.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> stop = [atoll.Target("test.accuracy", 0.5)]
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=20, stop=stop)
        >>> "test.accuracy reached" in atoll.simulate(job, data, seed=0).reason
        True
    """

    metric: str = "test.accuracy"
    value: float = 0.99

    def __post_init__(self) -> None:
        if not isfinite(self.value):
            raise Mismatch(f"Target(value={self.value}): a value is a finite number")

    def __call__(self, history: History) -> str | None:
        curve = _curve(history, self.metric)
        if not curve or not history.rounds:
            return None
        t, value = curve[-1]
        sign = history.sign(self.metric)
        reached = sign * value >= sign * self.value
        return f"{self.metric} reached {value:.4g} in round {t} (target {self.value:g})" if reached else None


@dataclass(frozen=True)
class Budget(Stop):
    """Stop before the round that would spend more than ε.

    Needs: a stage with noise, or a method with `example_dp`.

    Args:
        epsilon: the largest ε, above 0.
        delta: the δ at which ε is computed, above 0 and below 1. Default: 1e-5, or N^-1.1 for N units
            where that is less.
        unit: what the budget is for, "party" or "example", if noise protects both. Default: what the noise protects.

    Example:
        >>> import atoll
        >>> atoll.Budget(epsilon=8.0, delta=1e-3)
        Budget(epsilon=8.0, delta=0.001, unit=None)
    """

    epsilon: float
    delta: float | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise Mismatch(f"Budget(epsilon={self.epsilon}): a budget is above 0")
        if self.delta is not None and not 0 < self.delta < 1:
            raise Mismatch(f"Budget(delta={self.delta}): a delta is above 0 and below 1")
        if self.unit not in (None, "party", "example"):
            raise Mismatch(f"Budget(unit={self.unit!r}): a unit is a 'party' or an 'example'")

    def __call__(self, history: History) -> str | None:
        raise Mismatch("Budget() counts what noise spends, and is bound to it when a job is assembled")

    @property
    def deltas(self) -> Mapping[str, float | None]:
        return dict.fromkeys((self.unit,) if self.unit else ("party", "example"), self.delta)

    def bound(self, ledger: Ledger | None) -> Stop:
        """Return the stop that knows what a round spends."""
        if ledger is None:
            raise Mismatch("Budget() counts what noise spends, and this job adds none: put Gaussian() into its stages")
        account = ledger.of(self.unit)
        each = ledger.asks or 1  # a round that cannot be ended is not begun
        allowed = max(account.rounds_within(self.epsilon) - ledger.extra, 0) // each
        if not allowed:
            one = in_epsilon(account.epsilon(each + ledger.extra))
            raise Mismatch(
                f"one round alone spends epsilon {one} of a budget of {self.epsilon:g}: add more noise "
                f"(`atoll calibrate JOB --epsilon {self.epsilon:g}` says how much)"
            )
        what = "rounds" if ledger.asks else "asks"
        spent = f"the budget of epsilon {self.epsilon:g} at delta {account.delta:g} allows {allowed:,} {what}"
        return Allowed(allowed * each, spent)


@dataclass(frozen=True)
class Allowed(Stop):
    """Stop after so many asks, for a reason."""

    asks: int
    why: str

    def __call__(self, history: History) -> str | None:
        return self.why if history.t >= self.asks else None


@dataclass(frozen=True)
class Patience(Stop):
    """Stop when a metric has not improved by more than `min_delta` for this many rounds, as far as it was evaluated.

    Args:
        metric: the split and the metric, such as "test.loss". Default "test.loss".
        rounds: rounds to wait for an improvement. Default 20.
        min_delta: the smallest change that counts as an improvement, in the unit of the metric. Default 0.

    Example:
        >>> import atoll
        >>> from atoll.core.method import History
        >>> history = History(t=5, rounds=5, curves={"test.loss": ((1, 0.5), (5, 0.6))}, better={"loss": "low"})
        >>> atoll.Patience("test.loss", rounds=4)(history)
        'test.loss has not improved for 4 rounds (patience 4)'
    """

    metric: str = "test.loss"
    rounds: int = 20
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        number("Patience: rounds", self.rounds)
        if not self.min_delta >= 0:
            raise Mismatch(f"Patience(min_delta={self.min_delta}): an improvement is 0 or more")

    def __call__(self, history: History) -> str | None:
        curve = _curve(history, self.metric)
        sign = history.sign(self.metric)
        best, when = float("-inf"), 0
        for t, value in curve:
            if sign * value > best + self.min_delta:
                best, when = sign * value, t
        waited = curve[-1][0] - when if curve else 0  # what was not evaluated since may have improved
        return (
            f"{self.metric} has not improved for {waited} rounds (patience {self.rounds})"
            if waited >= self.rounds
            else None
        )


@dataclass(frozen=True)
class Converged(Stop):
    """Stop when a round changes the parameters by less than this: ‖θ_t − θ_{t−1}‖₂ < epsilon.

    Args:
        epsilon: L2 norm of the change of the parameters, 0 or more. Default 1e-4.

    Example:
        >>> import atoll
        >>> from atoll.core.method import History
        >>> atoll.Converged(1e-3)(History(t=5, rounds=5, update_norm=0.2)) is None
        True
    """

    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise Mismatch(f"Converged(epsilon={self.epsilon}): a change of the parameters is 0 or more")

    def __call__(self, history: History) -> str | None:
        if history.update_norm is None or history.update_norm >= self.epsilon:
            return None
        moved = f"the parameters moved by {history.update_norm:.3g} in round {history.rounds}"
        return f"{moved} (still below {self.epsilon:g})"


@dataclass(frozen=True)
class WallTime(Stop):
    """Stop after the round in which this many seconds of the run have passed, including those before a resume.

    Args:
        seconds: of wall time. Default 3600.

    Example:
        >>> import atoll
        >>> from atoll.core.method import History
        >>> atoll.WallTime(60)(History(t=5, rounds=5, elapsed=61.0))
        '61 s have passed (wall time 60 s)'
    """

    seconds: float = 3600.0

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise Mismatch(f"WallTime(seconds={self.seconds}): a time is above 0")

    def __call__(self, history: History) -> str | None:
        if history.elapsed < self.seconds:
            return None
        return f"{history.elapsed:.0f} s have passed (wall time {self.seconds:g} s)"
