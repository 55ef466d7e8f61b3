"""Numbers of papers on real MNIST (the 10,000 test images: 8,000 to train on). Marked: they need the data.

Rounds to 90 % lie close to the best that softmax regression reaches (91 %), so they depend on which images are held
out: the table is of the split that NumPy's first permutation gives. Its column of E5 B10 says 15 rounds (IID) and 87
(shards); plain NumPy takes 22 to 35 there (20 seeds) and 112 to 158 (8 seeds). That column is held to such an oracle.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
import pytest

import atoll

pytestmark = pytest.mark.data

MODEL = atoll.models.softmax()
E5_B10 = atoll.FedAvg(MODEL, 5, 10, 0.1)
CELLS = {
    ("FedSGD η=.5", "iid"): (atoll.FedSGD(MODEL, 0.5), 132),
    ("FedSGD η=.5", "shards"): (atoll.FedSGD(MODEL, 0.5), 126),
    ("FedSGD η=1", "iid"): (atoll.FedSGD(MODEL, 1.0), 75),
    ("FedSGD η=1", "shards"): (atoll.FedSGD(MODEL, 1.0), 85),
    ("E1 B10 η=.1", "iid"): (atoll.FedAvg(MODEL, 1, 10, 0.1), 84),
    ("E1 B10 η=.1", "shards"): (atoll.FedAvg(MODEL, 1, 10, 0.1), 156),
}


@pytest.fixture(scope="module")
def images() -> atoll.data.Table:
    mnist = atoll.data.load("mnist")
    x, y = mnist.test_x, mnist.test_y
    order = np.random.default_rng(0).permutation(len(y))
    train, held = order[:8000], order[8000:]
    return atoll.data.from_arrays(x[train], y[train], test=(x[held], y[held]))


def accuracies(images: atoll.data.Table, by: str, method: Any, seed: int, rounds: int, target: float = 1.0) -> Any:
    """Test accuracy of every round until the target."""
    job = atoll.Job(method, atoll.Uniform(0.1), rounds=rounds, stop=[atoll.Target("test.accuracy", target)])
    return np.array(atoll.simulate(job, images.split(100, by=by, seed=seed), seed).curve("test.accuracy")[1])


def rounds_to(target: float, images: atoll.data.Table, by: str, method: Any, seeds: int) -> float:
    """The median over seeds."""
    found = [accuracies(images, by, method, seed, 300, target) for seed in range(seeds)]
    return median(len(curve) if curve[-1] >= target else float("inf") for curve in found)


@pytest.mark.parametrize(("name", "by"), CELLS)
def test_target_1b(images: atoll.data.Table, name: str, by: str) -> None:
    method, rounds = CELLS[name, by]
    assert rounds_to(0.9, images, by, method, 5) == pytest.approx(rounds, rel=0.3)


def oracle(images: atoll.data.Table, by: str, seed: int, rounds: int) -> Any:
    """Test accuracies of FedAvg, E5 B10 η=.1, written down anew."""
    rng = np.random.default_rng(seed)
    x, x_test = (np.hstack([a, np.ones((len(a), 1), np.float32)]) for a in (images.x, images.test_x))
    y, w, curve = np.eye(10, dtype=np.float32)[images.y], np.zeros((785, 10), np.float32), []
    if by == "iid":
        parties = rng.permutation(8000).reshape(100, 80)
    else:
        parties = rng.permutation(np.argsort(images.y, kind="stable").reshape(200, 40)).reshape(100, 80)
    for _ in range(rounds):
        models = []
        for party in parties[rng.choice(100, 10, replace=False)]:
            local = w.copy()
            for step in (rows for _ in range(5) for rows in rng.permutation(party).reshape(8, 10)):
                z = x[step] @ local
                scores = np.exp(z - z.max(1, keepdims=True))
                local -= 0.1 * x[step].T @ (scores / scores.sum(1, keepdims=True) - y[step]) / 10
            models.append(local)
        w = np.mean(models, axis=0)
        curve.append(((x_test @ w).argmax(1) == images.test_y).mean())
    return np.array(curve)


@pytest.mark.parametrize(("by", "after", "rounds"), [("iid", 10, 30), ("shards", 50, 100)])
def test_local_work_does_what_plain_numpy_does(images: atoll.data.Table, by: str, after: int, rounds: int) -> None:
    ours = np.mean([accuracies(images, by, E5_B10, seed, rounds)[after:] for seed in range(3)])
    plain = np.mean([oracle(images, by, seed, rounds)[after:] for seed in range(3)])
    assert ours == pytest.approx(plain, abs=0.01)


def test_local_work_pays_with_iid_data_only(images: atoll.data.Table) -> None:
    """At 87 %: at 90 % the gain is 2.3 (IID), since local work on 80 images ends where the target is."""
    fed_sgd = atoll.FedSGD(MODEL, 1.0)
    gain = {
        by: rounds_to(0.87, images, by, fed_sgd, 3) / rounds_to(0.87, images, by, E5_B10, 3) for by in ("iid", "shards")
    }
    assert gain["iid"] >= 4
    assert gain["shards"] <= 1.5


def test_when_to_federate_iid() -> None:
    data = atoll.data.load("mnist_t10k").split(100, by="iid", seed=0)
    job = atoll.Job(atoll.FedAvg(MODEL, 5, 10, 0.1), atoll.Uniform(0.1), rounds=20, eval_every=20)
    found = atoll.compare(job, data)
    assert found.alone_all.mean() == pytest.approx(0.69, abs=0.02)
    assert found.federated_all == pytest.approx(0.90, abs=0.02)
    assert found.verdict.startswith("Yes")


def test_when_to_federate_shards() -> None:
    data = atoll.data.load("mnist_t10k").split(100, by="shards", seed=0)
    job = atoll.Job(atoll.FedAvg(MODEL, 5, 10, 0.1), atoll.Uniform(0.1), rounds=100, eval_every=100)
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
