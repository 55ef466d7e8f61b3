"""Compare scores by what a job declares: its own metric, in its direction, also of methods without a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

import atoll
from atoll.core.method import Contribution, Method, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.data.federated import Federated
from atoll.metrics import AUC, MSE, Accuracy, LogLoss


@pytest.fixture(scope="module")
def digits() -> Federated:
    return atoll.data.load("digits").split(6, by="dirichlet", alpha=0.3, seed=0, test=0.2)


@dataclass(frozen=True)
class Centres(Method):
    """The mean of each class; rows belong to the nearest. Its state has no `params`."""

    @property
    def phases(self) -> Mapping[str, Phase]:
        return {"count": Phase(Schema((("sums", (10, 64)), ("n", (10,)))), mean=False)}

    def init(self, world: World, population: Population) -> State:
        return {"centres": np.zeros((10, 64))}

    def broadcast(self, state: State) -> Tree:
        return dict(state)

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        sums, n = np.zeros((len(group), 10, 64)), np.zeros((len(group), 10))
        for k, (x, y) in enumerate(group):
            np.add.at(sums[k], y, x.reshape(len(y), 64))
            np.add.at(n[k], y, 1)
        return Contribution({"sums": sums, "n": n}, group.size)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"centres": tree["sums"] / np.maximum(tree["n"], 1)[:, None]}

    def scores(self, broadcast: Tree, group: Group) -> Array:
        return self.predict(broadcast, np.concatenate([x for x, _ in group]))

    def predict(self, state: State, x: Array) -> Array:
        return -((x.reshape(len(x), 1, 64) - state["centres"]) ** 2).sum(-1)


def centres(x: Array, y: Array) -> Array:
    return np.stack([x[y == c].mean(0) if (y == c).any() else np.zeros(64) for c in range(10)])


def test_a_method_whose_state_has_no_parameters_is_compared(digits: Federated) -> None:
    job = atoll.Job(Centres(), atoll.All(), atoll.Channel([]), rounds=1, metrics=[Accuracy()])
    found = atoll.compare(job, digits)
    assert digits.test
    rows = [(x.reshape(len(y), 64), y) for x, y in digits.train]
    x, y = (np.concatenate(part) for part in zip(*rows, strict=True))

    def score(c: Array) -> float:
        xs, ys = (np.concatenate(part) for part in zip(*digits.test, strict=True))  # type: ignore[misc]
        return float((Centres().predict({"centres": c}, xs).argmax(1) == ys).mean())

    assert found.alone_all == pytest.approx([score(centres(*one)) for one in rows])
    assert found.pooled_all == found.federated_all == pytest.approx(score(centres(x, y)))
    assert found.metric == "accuracy"


def test_the_first_metric_of_a_job_is_compared_in_its_direction(digits: Federated) -> None:
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=3, metrics=[LogLoss(), AUC()])
    found = atoll.compare(job, digits)
    assert (found.metric, found.better) == ("log_loss", "low")
    assert found.better_off == (found.federated_own < found.alone_own).sum()
    assert found.federated_all < found.alone_all.mean()
    assert found.ways["alone"]["all.best"] == found.alone_all.min()
    assert found.ways["alone"]["all.worst10"] == found.alone_all.max()
    assert "gains" in found.verdict  # on everybody's data, where less is more
    assert "in log_loss" in found.verdict
    assert "points" not in found.verdict
    run = atoll.simulate(job, digits)
    assert found.federated_all == pytest.approx(run.curve("test.log_loss")[1][-1])
    auc = atoll.compare(replace(job, metrics=[AUC()]), digits)
    assert (auc.metric, auc.better) == ("auc", "high")
    assert auc.federated_all == pytest.approx(run.curve("test.auc")[1][-1])
    assert "points" in auc.verdict


def test_labels_of_a_party_weigh_every_metric(digits: Federated) -> None:
    """A party without test data of its own is scored on the central test set as if it had the party's labels."""
    assert digits.test
    mixed = replace(digits, local=None)
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=2, metrics=[LogLoss()])
    found, run = atoll.compare(job, mixed), atoll.simulate(job, mixed)
    xs, ys = (np.concatenate(part) for part in zip(*digits.test, strict=True))
    logits = run.predict(xs).astype(np.float64)
    loss = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - logits[np.arange(len(ys)), ys]
    by_label = np.array([loss[ys == c].mean() for c in range(10)])
    share = np.stack([np.bincount(y, minlength=10) / len(y) for _, y in digits.train])
    assert found.federated_own == pytest.approx(share @ by_label, rel=1e-5)


def test_squared_errors_are_compared_as_numbers() -> None:
    data = atoll.data.load("diabetes").split(4, by="iid", seed=0, test=0.2)
    job = atoll.Job(atoll.FedAvg(atoll.models.linear(), lr=0.05), atoll.All(), rounds=5, metrics=[MSE()])
    found = atoll.compare(job, data)
    assert (found.metric, found.better) == ("mse", "low")
    assert found.better_off == (found.federated_own < found.alone_own).sum()


def test_what_measures_nothing_cannot_be_compared(digits: Federated) -> None:
    with pytest.raises(Mismatch, match="Centres measures nothing: add metrics"):
        atoll.compare(atoll.Job(Centres(), atoll.All(), atoll.Channel([]), rounds=1), digits)
