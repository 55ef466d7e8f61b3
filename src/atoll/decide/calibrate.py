"""How much noise a job needs to stay within a budget, all else as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

from atoll.data.checks import check_federated
from atoll.data.federated import Federated
from atoll.job.assemble import assemble
from atoll.job.job import Channel, Job, check_job
from atoll.stop.stops import Budget


@dataclass(frozen=True)
class Calibrated:
    """A job with the noise it needs: its multiplier, what it then spends, and the words that stand beside an ε.

    Phases with other noise keep their proportion to the first that a round asks.
    """

    job: Job
    values: Mapping[str, float]  # multipliers by their keys in a job file
    multiplier: float  # of the phase that is accounted first
    epsilon: float
    words: str

    @property
    def key(self) -> str:
        """The first key."""
        return next(iter(self.values))


def calibrate(job: Job, data: Federated, epsilon: float, delta: float | None = None) -> Calibrated:
    """Find the smallest noise multiplier (of three digits) with which all rounds of a job stay within ε.

    Args:
        job: a job with noise.
        data: its data.
        epsilon: the largest ε, above 0.
        delta: the δ of the guarantee, above 0 and below 1. Default: 1e-5, or N^-1.1 for N units where that is less.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(60, seed=0)
        >>> stages = [atoll.Clip(0.5), atoll.Average("expected"), atoll.Gaussian(1.0)]
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Poisson(0.2), atoll.Channel(stages), rounds=20)
        >>> found = atoll.calibrate(job, data, epsilon=4.0, delta=1e-3)
        >>> found.epsilon <= 4.0 and found.job.channel.stages[2].multiplier == found.multiplier
        True
    """
    from atoll.privacy.ledger import calibrated

    check_job(job)
    check_federated(data)
    budget = Budget(epsilon, delta)  # which refuses what is no number
    others = tuple(stop for stop in job.stop if not stop.deltas)
    job = replace(job, stop=(*others, Budget(inf, delta)))
    assembled = assemble(job, data)
    ledger, phases = assembled.ledger, tuple(assembled.job.method.phases)
    assert ledger is not None  # a budget without noise was refused
    z, first = calibrated(ledger, epsilon, job.rounds), ledger.accounts[0].spend
    made, values = _with_noise(job, phases, first.unit, z / first.multiplier)
    budget = replace(budget, delta=ledger.accounts[0].delta)
    account, asks = (assemble(made, data).ledger or ledger).accounts[0], ledger.planned(job.rounds)
    assert asks is not None  # else nothing was calibrated
    return Calibrated(replace(made, stop=(*others, budget)), values, z, account.epsilon(asks), account.words())


def _with_noise(job: Job, phases: Sequence[str], unit: str, factor: float) -> tuple[Job, dict[str, float]]:
    """Return the job with so many times the noise, and the multipliers that say so."""
    if unit == "example":
        method: Any = job.method
        z = _times(method.example_dp.multiplier, factor)
        noisier = replace(method, example_dp=replace(method.example_dp, multiplier=z))
        return replace(job, method=noisier), {"method.example_dp.multiplier": z}
    values: dict[str, float] = {}

    def louder(channel: Channel, where: str) -> Channel:
        stages: list[Any] = list(channel.stages)
        at = next(i for i, stage in enumerate(stages) if any(f.name == "multiplier" for f in fields(stage)))
        values[f"{where}stages.{at}.multiplier"] = z = _times(stages[at].multiplier, factor)
        stages[at] = replace(stages[at], multiplier=z)
        return replace(channel, stages=stages)

    channel = job.channel
    made = louder(channel, "") if any(name not in channel.phases for name in phases) else channel
    inner = {name: louder(one, f"phases.{name}.") for name, one in channel.phases.items()}
    return replace(job, channel=replace(made, phases=inner)), values


def _times(multiplier: float, factor: float) -> float:
    """Multiply, and drop what rounding adds in the last digits."""
    return float(f"{multiplier * factor:.12g}")
