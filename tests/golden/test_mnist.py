"""Numbers of papers on real MNIST (the 10,000 test images: 8,000 to train on). Marked: they need the data.

Rounds to 90 % lie close to the best that softmax regression reaches, so they depend on which images are held out: over
eleven other draws of the 2,000 test images the cell "E5 B10, IID" took 12 to 64 rounds. The cells are therefore medians
over three seeds, compared within the factor 1.7 that independent reproductions of the paper scatter by.
"""

from __future__ import annotations

from statistics import median

import pytest

import atoll

pytestmark = pytest.mark.data

MODEL = atoll.models.softmax()
CELLS = {
    "FedSGD η=.5": (atoll.FedSGD(MODEL, 0.5), 132, 126),
    "FedSGD η=1": (atoll.FedSGD(MODEL, 1.0), 75, 85),
    "E1 B10 η=.1": (atoll.FedAvg(MODEL, 1, 10, 0.1), 84, 156),
    "E5 B10 η=.1": (atoll.FedAvg(MODEL, 5, 10, 0.1), 15, 87),
}


def rounds_to(target: float, method: object, by: str) -> float:
    found = []
    for seed in range(3):
        data = atoll.data.load("mnist_t10k").split(100, by=by, seed=seed)
        stop = [atoll.Target("test.accuracy", target)]
        run = atoll.simulate(atoll.Job(method, atoll.Uniform(0.1), rounds=300, stop=stop), data, seed)  # type: ignore[arg-type]
        rounds, values = run.curve("test.accuracy")
        found.append(rounds[-1] if values[-1] >= target else float("inf"))
    return median(found)


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], float]:
    return {(name, by): rounds_to(0.9, cell[0], by) for name, cell in CELLS.items() for by in ("iid", "shards")}


@pytest.mark.parametrize("name", CELLS)
def test_target_1b(table: dict[tuple[str, str], float], name: str) -> None:
    _, iid, shards = CELLS[name]
    assert 1 / 1.7 <= table[name, "iid"] / iid <= 1.7
    assert 1 / 1.7 <= table[name, "shards"] / shards <= 1.7


def test_local_work_pays_with_iid_data_only(table: dict[tuple[str, str], float]) -> None:
    assert table["FedSGD η=1", "iid"] / table["E5 B10 η=.1", "iid"] >= 2.5
    assert table["FedSGD η=1", "shards"] / table["E5 B10 η=.1", "shards"] <= 1.5


def test_when_to_federate_iid() -> None:
    data = atoll.data.load("mnist_t10k").split(100, by="iid", seed=0)
    job = atoll.Job(atoll.FedAvg(MODEL, 5, 10, 0.1), atoll.Uniform(0.1), rounds=20, every=20)
    found = atoll.compare(job, data)
    assert found.alone_all.mean() == pytest.approx(0.69, abs=0.02)
    assert found.federated_all == pytest.approx(0.90, abs=0.02)
    assert found.verdict.startswith("Yes")


def test_when_to_federate_shards() -> None:
    data = atoll.data.load("mnist_t10k").split(100, by="shards", seed=0)
    job = atoll.Job(atoll.FedAvg(MODEL, 5, 10, 0.1), atoll.Uniform(0.1), rounds=100, every=100)
    found = atoll.compare(job, data)
    assert found.alone_own.mean() == pytest.approx(0.97, abs=0.02)
    assert found.federated_all == pytest.approx(0.87, abs=0.02)
    assert found.alone_all.mean() == pytest.approx(0.195, abs=0.02)
    assert found.verdict.startswith("Only if")


def test_two_layer_net_reaches_97_percent() -> None:
    """Target 1 (c): the 2NN with E=1, B=10, C=.1 on IID MNIST in at most 150 rounds (the paper: 87)."""
    data = atoll.data.load("mnist").split(100, by="iid", seed=0)
    stop = [atoll.Target("test.accuracy", 0.97)]
    run = atoll.simulate(atoll.Job(atoll.FedAvg(atoll.models.mlp(), 1, 10, 0.1), rounds=150, stop=stop), data)
    assert "reached" in run.reason
