"""Parts of another package between real parties: the numbers of the simulation, also of what stays at a party."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc")

from cast import Cast, parameters

import atoll
from atoll.data import build
from atoll.job.file import parse

pytestmark = pytest.mark.nightly

DIGITS = '{ use = "digits", clients = 4, by = "dirichlet", alpha = 0.3, test = 0.2 }'
CANCER = '{ use = "breast_cancer", clients = 4, by = "power" }'
DIABETES = '{ use = "diabetes", clients = 4, test = 0.2 }'
SOFTMAX = 'model = "softmax", epochs = 2, batch = 10, lr = 0.1'
JOBS = {
    "active": (DIGITS, f"""
method = {{ use = "outside_valued", {SOFTMAX} }}
select = {{ use = "outside_active", number = 2, a1 = 0.5, a2 = 1.0, a3 = 0.0 }}"""),
    "ditto": (DIGITS, f"""
method = {{ use = "outside_ditto", {SOFTMAX}, pull = 0.1 }}
select = {{ use = "count", number = 3 }}"""),
    "fedper": (DIGITS, """
method = { use = "outside_fedper", model = { use = "mlp", hidden = [16] }, head = "3", epochs = 2 }
select = "all\""""),
    "scaffold": (DIGITS, f"""
method = {{ use = "outside_scaffold", {SOFTMAX} }}
select = {{ use = "count", number = 3 }}
stages = ["average"]"""),
    "fedlin": (DIGITS, """
method = { use = "outside_fedlin", model = "softmax", epochs = 3, lr = 0.05 }
select = { use = "count", number = 3 }
stages = ["average"]"""),
    "boost": (CANCER, """
method = { use = "outside_boost", trees = 6, depth = 2 }
select = "all"
stages = []"""),
    "componentwise": (DIABETES, """
method = { use = "outside_componentwise", steps = 6 }
select = "outside_rest"
stages = []"""),
}  # fmt: skip


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path, ("ada", "ben", "cleo", "dan"))
    yield made
    made.end()


def curves(run: atoll.Run) -> dict[str, list[dict[str, float]]]:
    """What was evaluated, without what a clock says."""
    kept = ("round", "parties", "accuracy", "loss", "mse")
    found = [f for f in run.facts if f["what"] == "evaluation"]
    return {s: [{k: f[k] for k in kept if k in f} for f in found if f["split"] == s] for s in ("test", "local")}


@pytest.mark.parametrize("name", JOBS)
def test_served_equals_simulated(name: str, cast: Cast, installed: Path) -> None:
    from atoll.job.parts import digest

    recipe, parts = JOBS[name]
    job = f'name = "{name}"\nrounds = 6\ndata = {recipe}\n{parts}\n'
    said = parse(job, "the test")
    # One party at a time, as over the network: a group that is computed at once rounds its full gradients otherwise.
    simulated = atoll.simulate(said.job, build(said.data, said.seed), said.seed, loop=True)
    address = cast.open(job)
    for party in cast.names:
        cast.join(address, party, f'{cast.policy(party, recipe)}parts = {{ outside = "{digest("outside")}" }}\n')
    run = cast.close(300)
    assert np.array_equal(parameters(run.params), parameters(simulated.params))
    assert curves(run) == curves(simulated)
    if name in ("ditto", "fedper"):
        assert curves(run)["local"][-1]["parties"] == 4
