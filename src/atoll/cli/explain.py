"""`atoll explain`: what a job would do, cost and reveal."""

from __future__ import annotations

import sys


def explain_job(job: str, overrides: list[str]) -> None:
    """Print the explanation of a job file."""
    from atoll.data import build
    from atoll.jobfile import load
    from atoll.report.explain import explain

    said = load(job, overrides)
    sys.stdout.write(explain(said.job, build(said.data, said.seed), said.seed) + "\n")
