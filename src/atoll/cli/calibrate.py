"""`atoll calibrate`: how much noise a budget asks for."""

from __future__ import annotations

import sys


def calibrate_job(job: str, overrides: list[str], epsilon: float, delta: float | None) -> None:
    """Print the noise that keeps a job file within a budget, and how to set it."""
    from atoll.calibrate import calibrate
    from atoll.catalogue import BadJob
    from atoll.data import build
    from atoll.jobfile import load

    said = load(job, overrides)
    try:
        found = calibrate(said.job, build(said.data, said.seed), epsilon, delta)
    except ValueError as error:
        raise BadJob(str(error)) from None
    sys.stdout.write(
        f"a noise multiplier of {found.multiplier:g} keeps {said.job.rounds:,} rounds at epsilon {found.epsilon:.4g} "
        f"({found.words})\nset it with --set {found.key}={found.multiplier:g}\n"
    )
