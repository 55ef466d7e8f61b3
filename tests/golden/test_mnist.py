"""Numbers of papers on real MNIST (the 10,000 test images: 8,000 to train, 2,000 to test). Marked: they need the data."""

from __future__ import annotations

import pytest

import atoll

pytestmark = pytest.mark.data


def rounds_to(target: float, method: object, by: str) -> float:
    data = atoll.data.load("mnist_t10k").split(100, by=by, seed=0)
    stop = [atoll.Target("test.accuracy", target)]
    run = atoll.simulate(atoll.Job(method, atoll.Uniform(0.1), rounds=400, stop=stop), data)  # type: ignore[arg-type]
    rounds, values = run.curve("test.accuracy")
    for (t0, v0), (t1, v1) in zip(
        zip(rounds, values, strict=True), zip(rounds[1:], values[1:], strict=True), strict=False
    ):
        if v1 >= target:
            return t0 + (t1 - t0) * (target - v0) / (v1 - v0)
    return float("inf")


MODEL = atoll.models.softmax()
CELLS = {
    "FedSGD η=.5": (atoll.FedSGD(MODEL, 0.5), 132, 126),
    "FedSGD η=1": (atoll.FedSGD(MODEL, 1.0), 75, 85),
    "E1 B10 η=.1": (atoll.FedAvg(MODEL, 1, 10, 0.1), 84, 156),
    "E5 B10 η=.1": (atoll.FedAvg(MODEL, 5, 10, 0.1), 15, 87),
}


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], float]:
    return {(name, by): rounds_to(0.9, cell[0], by) for name, cell in CELLS.items() for by in ("iid", "shards")}


@pytest.mark.parametrize("name", CELLS)
def test_target_1b(table: dict[tuple[str, str], float], name: str) -> None:
    _, iid, shards = CELLS[name]
    assert table[name, "iid"] == pytest.approx(iid, rel=0.3)
    assert table[name, "shards"] == pytest.approx(shards, rel=0.3)


def test_target_1b_ratios(table: dict[tuple[str, str], float]) -> None:
    assert table["FedSGD η=1", "iid"] / table["E5 B10 η=.1", "iid"] >= 4
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
