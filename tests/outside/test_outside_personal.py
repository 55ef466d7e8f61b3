"""Personal models are evaluated where they are, on the party's own data; the shared one on the server's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parts.personal import Ditto, FedPer

import atoll
from atoll.data import Federated
from atoll.testing import check_method

MODEL = atoll.models.mlp((32,))
SETTINGS: dict[str, Any] = {"epochs": 2, "batch": 10, "lr": 0.1}


@pytest.fixture(scope="module")
def skewed() -> Federated:
    return atoll.data.build({"use": "digits", "clients": 12, "by": "dirichlet", "alpha": 0.1, "test": 0.2}, 0)


def trained(method: Any, data: Federated, **more: Any) -> atoll.Run:
    job = atoll.Job(method, more.pop("select", atoll.All()), rounds=10, eval_every=10)
    return atoll.simulate(job, data, workers=more.pop("workers", 0), **more)


@pytest.fixture(scope="module")
def shared(skewed: Federated) -> atoll.Run:
    return trained(atoll.FedAvg(MODEL, **SETTINGS), skewed)


def last(run: atoll.Run, metric: str) -> float:
    return run.curve(metric)[1][-1]


@pytest.mark.parametrize("method", [Ditto(MODEL, **SETTINGS), FedPer(MODEL, "3", **SETTINGS)], ids=["ditto", "fedper"])
def test_personal_models_fit_their_parties(method: Any, skewed: Federated, shared: atoll.Run) -> None:
    run = trained(method, skewed)
    assert last(run, "local.accuracy") > 0.92
    assert last(run, "local.accuracy") > last(shared, "local.accuracy") + 0.12
    assert run.curve("local.accuracy")[1][0] == shared.curve("local.accuracy")[1][0]  # before anybody has one


def test_the_shared_model_of_ditto_is_that_of_fedavg(skewed: Federated, shared: atoll.Run) -> None:
    run = trained(Ditto(MODEL, **SETTINGS), skewed)
    assert last(run, "test.accuracy") == pytest.approx(last(shared, "test.accuracy"), abs=1e-6)
    assert np.abs(run.vector - shared.vector).max() < 1e-6


def test_the_head_of_fedper_never_leaves_a_party(skewed: Federated) -> None:
    run = trained(FedPer(MODEL, "3", **SETTINGS), skewed)
    start = MODEL.bind((64,), 10)
    for name, a, b, _ in start.schema.slots():
        assert np.array_equal(run.vector[a:b], start.init(0)[a:b]) == name.startswith("3"), name
    (sent,) = {f["bytes_up"] for f in run.facts if f["what"] == "round"}
    assert 0 < sent / 12 - 4 * (64 * 32 + 32 + 1) < 200  # the body, its weight, and their names


def test_who_never_took_part_has_the_shared_model(skewed: Federated) -> None:
    """Two of twelve a round: personal models of some, the shared one of others, in one evaluation."""
    run = trained(Ditto(MODEL, **SETTINGS), skewed, select=atoll.Count(2))
    same = trained(atoll.FedAvg(MODEL, **SETTINGS), skewed, select=atoll.Count(2))
    assert last(run, "local.accuracy") > last(same, "local.accuracy")
    assert last(run, "test.accuracy") == pytest.approx(last(same, "test.accuracy"), abs=1e-6)


def test_processes_and_a_cut_change_nothing(skewed: Federated, tmp_path: Any) -> None:
    method = Ditto(MODEL, **SETTINGS)
    run = trained(method, skewed)

    class Cut(Exception):
        pass

    def cut(note: Any) -> None:
        if note.what == "round" and note.facts["round"] == 6:
            raise Cut

    with pytest.raises(Cut):
        trained(method, skewed, out=tmp_path, sinks=(cut,))
    (folder,) = tmp_path.iterdir()
    for other in (trained(method, skewed, workers=2), trained(method, skewed, resume=folder)):
        assert other.vector.tobytes() == run.vector.tobytes()
        assert last(other, "local.accuracy") == last(run, "local.accuracy")


@pytest.mark.parametrize("method", [Ditto(atoll.models.logistic()), FedPer(atoll.models.logistic(), "1.dense.b")])
def test_laws(method: Any, unequal: Federated) -> None:
    check_method(method, unequal)
