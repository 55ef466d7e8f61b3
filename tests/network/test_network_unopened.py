"""Hidden sums between real processes that come to nothing: memory that goes back, evaluations beyond the range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from cast import Cast, parameters

import atoll
from atoll.core.effects import Ask, Replies
from atoll.data import build
from atoll.data.federated import Silos
from atoll.job.file import parse
from atoll.runtimes.network.server.hub import Hub

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


def test_a_sum_that_does_not_open_takes_the_memory_of_its_answers_back(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a party has not sent yet (error feedback) advances as it answers; the third sum is never opened.

    The run is that of a simulation in which nobody is online then, to the last bit, and not that in which all are.
    """
    ask = Hub.ask

    def losing(hub: Hub, one: Ask) -> Replies:
        lost = one.what == "train/secure.unmask" and int(one.body["t"]) == 2
        return Replies(np.arange(0)) if lost else ask(hub, one)

    monkeypatch.setattr(Hub, "ask", losing)
    run = cast.play(JOB, RECIPE)
    rounds = [fact for fact in run.facts if fact["what"] == "round"]
    assert [fact["answered"] for fact in rounds] == [4, 4, 0, 4, 4], "it does not count as one of the four rounds"
    assert "aborted" in rounds[2]
    trace = cast.folder / "trace.csv"
    trace.write_text("\n".join(f"{k},{first},{last}" for k in range(4) for first, last in ((1, 2), (4, 5))))
    said = parse(JOB.replace("rounds = 4", "rounds = 5"), "the test")  # a simulation counts the empty one
    data = build(said.data, said.seed)
    away = atoll.simulate(replace(said.job, availability=atoll.Trace(str(trace))), data, said.seed, loop=True)
    assert np.array_equal(parameters(run.params), parameters(away.params))
    always = atoll.simulate(said.job, data, said.seed, loop=True)
    assert not np.array_equal(parameters(run.params), parameters(always.params))


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
