"""Hidden sums between real processes to which a party has nothing to give: evaluations beyond the range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from cast import Cast

import atoll
from atoll.data.federated import Silos

NAMES = ("ada", "ben", "cleo", "dan")
RECIPE = '{ use = "digits", clients = 4 }'
JOB = f"""
name = "unopened"
rounds = 4
data = {RECIPE}
method = {{ use = "fedavg", model = "softmax", epochs = 1, batch = 10, lr = 0.1 }}
select = "all"
stages = [{{ use = "random_k", fraction = 0.3 }}, {{ use = "clip", norm = 1.0 }}, "average", "ring"]
combine = "secure_sum"
"""


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path, NAMES)
    yield made
    made.end()


def test_sums_over_own_test_data_beyond_the_range_are_declined_and_the_others_are_added(cast: Cast) -> None:
    data = atoll.data.load("diabetes").split(4, test=0.3, seed=0)
    assert data.local is not None
    y = np.array(data.local.y)
    y[data.local.offsets[3] :] = 1e15  # dan's: their squares add up to more than 2^64
    wild = replace(data, local=Silos(data.local.x, y, data.local.offsets, data.local.index))
    recipe = f'{{ use = "saved", folder = "{wild.save(cast.folder / "data")}" }}'
    stages = 'stages = [{ use = "clip", norm = 1.0 }, "average", "ring"]\n'
    text = JOB.replace(RECIPE, recipe).replace('"softmax"', '"linear"').replace("rounds = 4", "rounds = 1")
    run = cast.play("\n".join(stages if line.startswith("stages") else line for line in text.splitlines()), recipe)
    judged = [fact for fact in run.facts if fact["what"] == "evaluation" and fact["split"] == "local"]
    assert [fact["parties"] for fact in judged] == [3, 3]
    declined = [fact for fact in run.facts if fact["what"] == "declined"]
    assert {fact["party"] for fact in declined} == {"dan"}
    assert {fact["asked"].partition("/")[0] for fact in declined} == {"evaluate.local"}
    assert "a hidden sum adds numbers below 2^64" in cast.log("dan"), "dan alone reads why: it tells of his data"
    assert not any("2^64" in str(fact) for fact in run.facts)
    assert [fact["answered"] for fact in run.facts if fact["what"] == "round"] == [4], "he trains all the same"
    assert judged[0]["mse"] == pytest.approx(_mse_of_the_others(wild))


def _mse_of_the_others(data: Any) -> float:
    """A linear model starts at zero, so that its error is the label."""
    y = np.asarray(data.local.y, np.float64)
    rows = np.arange(int(data.local.offsets[3]))
    return float(np.mean(y[rows if data.local.index is None else data.local.index[rows]] ** 2))
