"""`atoll calibrate`: how much noise a budget asks for."""

from __future__ import annotations

import sys


def calibrate_job(job: str, overrides: list[str], epsilon: float, delta: float | None) -> None:
    """Print the noise that keeps a job file within a budget, and how to set it."""
    from atoll.data import build
    from atoll.decide.calibrate import calibrate
    from atoll.job.catalogue import BadJob
    from atoll.job.file import load
    from atoll.privacy.account import in_epsilon
    from atoll.report.units import count

    said = load(job, overrides)
    try:
        found = calibrate(said.job, build(said.data, said.seed), epsilon, delta)
    except ValueError as error:
        raise BadJob(str(error)) from None
    said_so = " ".join(f"--set {key}={value:.12g}" for key, value in found.values.items())
    sys.stdout.write(
        f"a noise multiplier of {found.multiplier:g} keeps {count(said.job.rounds, 'round')} at epsilon "
        f"{in_epsilon(found.epsilon)} ({found.words})\nset it with {said_so}\n"
    )
