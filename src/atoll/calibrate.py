"""How much noise a job needs to stay within a budget, all else as it is."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

from atoll.data.federated import Federated
from atoll.job import Job, assemble
from atoll.stop import Budget


@dataclass(frozen=True)
class Calibrated:
    """A job with the noise it needs: its multiplier, what it then spends, and the words that stand beside an ε."""

    job: Job
    key: str  # of the multiplier in a job file
    multiplier: float
    epsilon: float
    words: str


def calibrate(job: Job, data: Federated, epsilon: float, delta: float | None = None) -> Calibrated:
    """Find the smallest noise multiplier (of three digits) with which all the job's rounds stay within ε."""
    from atoll.privacy.ledger import calibrated

    others = tuple(stop for stop in job.stop if not isinstance(stop, Budget))
    job = replace(job, stop=(*others, Budget(inf, delta)))
    ledger = assemble(job, data).ledger
    assert ledger is not None  # a budget without noise was refused
    z = calibrated(ledger, epsilon, job.rounds)
    made, key = _with_noise(job, ledger.accounts[0].spend.unit, z)
    budget = Budget(epsilon, ledger.accounts[0].delta)
    account = (assemble(made, data).ledger or ledger).accounts[0]
    return Calibrated(
        replace(made, stop=(*others, budget)), key, z, account.epsilon(job.rounds), account.words()
    )  # fmt: skip


def _with_noise(job: Job, unit: str, z: float) -> tuple[Job, str]:
    if unit == "example":
        method: Any = job.method
        noisier = replace(method, private=replace(method.private, multiplier=z))
        return replace(job, method=noisier), "method.private.multiplier"
    stages: list[Any] = list(job.channel.stages)
    at = next(i for i, stage in enumerate(stages) if any(f.name == "multiplier" for f in fields(stage)))
    stages[at] = replace(stages[at], multiplier=z)
    return replace(job, channel=replace(job.channel, stages=stages)), f"stages.{at}.multiplier"
