"""`atoll explain`: what a job would do, cost and reveal."""

from __future__ import annotations

import sys


def explain_job(job: str, overrides: list[str], *, deployed: bool) -> None:
    """Print the explanation of a job file: of its simulation, or of its deployment between real parties."""
    from atoll.core.world import World
    from atoll.data import build
    from atoll.job.file import load_any
    from atoll.job.roles import RoleJob
    from atoll.report.explain import explain

    said = load_any(job, overrides)
    world = World.real(said.seed) if deployed else World.simulated(said.seed)
    if isinstance(said, RoleJob):
        from atoll.report.roles import explain_roles
        from atoll.runtimes.roles.simulate import recipes_of

        known = {role: held.summary(b"") for role, held in recipes_of(said).items()}
        sys.stdout.write(explain_roles(said, known, world=world) + "\n")
        return
    sys.stdout.write(explain(said.job, build(said.data, said.seed), said.seed, world=world) + "\n")
