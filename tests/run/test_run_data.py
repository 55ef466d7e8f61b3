"""Data that cannot be learnt from ends a run before it begins, in a sentence, in Python and from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_run_parts import ATOLL, small

import spawn
from atoll.data import BadData, Federated, Silos
from atoll.runtimes.run import simulate


def federation(fault: str = "") -> Federated:
    """Three parties with four samples each, of two classes; then one thing is wrong."""
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    y, offsets = np.arange(12, dtype=np.int32) % 2, np.array([0, 4, 8, 12])
    if fault == "empty":
        offsets = np.array([0, 4, 4, 12])
    elif fault == "nan":
        x[9, 3] = np.nan
    elif fault == "one class":
        y[:] = 1
    elif fault == "label":
        y[6] = 2
    return Federated(Silos(x, y, offsets), kind="classes", classes=2, parties=("Basel", "Genf", "Bern"))


FAULTS = [
    ("empty", "party Genf has no samples: leave it out"),
    ("nan", "party Bern has nan for a feature: fill it in"),
    ("one class", "all parties together hold only class 1: give samples of at least two classes"),
    ("label", "party Genf has label 2, beyond 0 to 1: correct it"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_a_simulation_refuses_it_and_writes_nothing(fault: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=words):
        simulate(small(rounds=1), federation(fault), out=tmp_path)
    assert not list(tmp_path.iterdir())
    assert simulate(small(rounds=1), federation(), workers=0).reason == "its only round is done"


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_so_does_the_command_line(fault: str, words: str, tmp_path: Path) -> None:
    federation(fault).save(tmp_path / "held")
    (tmp_path / "job.toml").write_text(
        'name = "held"\nrounds = 1\ndata = { use = "saved", folder = "held" }\n'
        'method = { use = "fedavg", model = "softmax" }\n'
    )
    done = spawn.run([*ATOLL, "run", "job.toml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"atoll: {words}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "runs").iterdir())
