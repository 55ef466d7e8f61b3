"""Alone, federated and pooled: learning rates go as far in each, and parties are scored on their own data."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.data.federated import Federated, Silos
from atoll.data.table import Table
from atoll.metrics import LogLoss
from atoll.models import functions, linear, softmax


def descend(x: float, c: float, rates: list[float]) -> float:
    """Full-batch gradient descent on (x − c)²/2."""
    for lr in rates:
        x -= lr * (x - c)
    return x


def quadratic(cs: list[float]) -> tuple[atoll.Model, Federated]:
    """Each party has one number c and half the squared distance to it for a loss: y = 0 + b is linear regression."""
    parts = [(np.zeros((1, 1)), np.array([c])) for c in cs]
    test = (np.zeros((4, 1)), np.array([0.0, 1.0, 2.0, 5.0]))
    return linear(dtype="float64"), atoll.data.federate(parts, test=test, kind="real")


def r2(b: float) -> float:
    y = np.array([0.0, 1.0, 2.0, 5.0])
    return float(1 - ((y - b) ** 2).sum() / ((y - y.mean()) ** 2).sum())


@pytest.mark.parametrize("lr", [0.2, atoll.Exponential(0.5, 0.7), atoll.Steps(0.5, 2, 0.1), atoll.Cosine(0.6, 6)])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_schedule_goes_as_far_alone_and_pooled(lr: atoll.methods.schedule.Schedule | float, epochs: int) -> None:
    """With everybody in every round a pass is an epoch of a round, so the rates are those of the rounds."""
    model, data = quadratic([3.0, -1.0])
    job = atoll.Job(atoll.FedAvg(model, epochs, None, lr), atoll.All(), rounds=6)
    found = atoll.compare(job, data)
    rates = [lr(t) if callable(lr) else lr for t in range(6) for _ in range(epochs)]
    assert found.passes == 6 * epochs
    assert found.alone_all == pytest.approx([r2(descend(0, c, rates)) for c in (3.0, -1.0)], abs=1e-12)
    assert found.pooled_all == pytest.approx(r2(descend(0, 1.0, rates)), abs=1e-12)
    assert found.federated_all == pytest.approx(found.pooled_all, abs=1e-12)  # equal curvatures: no drift


def test_fewer_passes_than_rounds_still_go_to_the_end_of_a_schedule() -> None:
    """Half of the parties in each of eight rounds are four passes, with the rates of rounds 0, 2, 4 and 6."""
    model, data = quadratic([3.0, -1.0])
    lr = atoll.Exponential(0.5, 0.5)
    found = atoll.compare(atoll.Job(atoll.FedAvg(model, 1, None, lr), atoll.Count(1), rounds=8), data)
    assert found.passes == 4
    assert found.pooled_all == pytest.approx(r2(descend(0, 1.0, [lr(t) for t in (0, 2, 4, 6)])), abs=1e-12)


def test_own_test_data_is_used_where_a_party_has_some() -> None:
    """Two parties with opposite labels; the third has no test data and is scored by its labels."""
    x = np.array([[-1.0], [1.0]] * 4, np.float32)
    up, down = (x[:, 0] > 0).astype(np.int32), (x[:, 0] < 0).astype(np.int32)
    data = atoll.data.federate([(x, up), (x, down), (x[:1], up[:1])], test=(x, up), classes=2)
    local = Silos(x, down, np.array([0, 3, 8, 8]))  # party 0 is tested on what it never saw
    job = atoll.Job(atoll.FedAvg(softmax(), 5, None, 1.0), atoll.All(), rounds=2)
    weighed, tested = atoll.compare(job, data), atoll.compare(job, replace(data, local=local))
    assert weighed.alone_own.tolist() == [1, 0, 1]
    assert tested.alone_own.tolist() == [0, 1, 1]
    assert np.array_equal(tested.alone_all, weighed.alone_all)
    assert tested.federated_own.tolist() == [0, 0, 1]  # the shared model has learned the first party's labels


def test_sequences_are_scored_on_their_own_test_data() -> None:
    """A model that says class 1 everywhere; party 0 has it in one place of four (2 is padding), party 1 in all."""
    ones = functions(lambda seed: np.array([0.0, 9.0, 0.0]), lambda p, x: p + 0 * x[..., None], ignore=2)
    x = np.zeros((2, 3), np.float32)
    y = np.array([[0, 1, 0], [0, 2, 2]], np.int32)
    data = atoll.data.federate([(x, y), (x, np.ones((2, 3), np.int32))], test=(x, y), classes=3)
    local = Silos(np.zeros((3, 3), np.float32), np.array([*y, [1, 1, 2]], np.int32), np.array([0, 2, 3]))
    job = atoll.Job(atoll.FedAvg(ones, lr=1e-6), atoll.All(), rounds=1)
    assert atoll.compare(job, data).federated_own.tolist() == [0.25, 0.25]
    assert atoll.compare(job, replace(data, local=local)).federated_own.tolist() == [0.25, 1.0]


def test_numbers_are_scored_on_their_own_test_data() -> None:
    """Where own numbers are all the same there is nothing to explain, and everybody's score stands in."""
    model, data = quadratic([3.0, -1.0, 1.0])
    y = np.array([1.0, 3.0, 4.0, 7.0, 7.0, 7.0])
    local = Silos(np.zeros((6, 1)), y, np.array([0, 3, 6, 6]))
    job = atoll.Job(atoll.FedAvg(model, 1, None, 0.5), atoll.All(), rounds=3)
    found = atoll.compare(job, replace(data, local=local))
    b = descend(0, 1.0, [0.5] * 3)
    mine = 1 - ((y[:3] - b) ** 2).sum() / ((y[:3] - y[:3].mean()) ** 2).sum()
    assert found.federated_own == pytest.approx([mine, r2(b), r2(b)], abs=1e-12)
    assert not isclose(mine, r2(b))


def test_alone_is_standardised_by_a_partys_own_statistics() -> None:
    """A party far from the others trains alone as it would in a federation of one that never saw them."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 1, (40, 3)), rng.normal(500, 20, (30, 3)), rng.normal(500, 20, (20, 3))])
    y = (x[:, 0] - np.repeat([0, 500, 500], [40, 30, 20]) > 0).astype(np.int32)
    who, apart = np.repeat([0, 1, 1], [40, 30, 20]), np.arange(90) >= 70
    table = Table(x[~apart], y[~apart], x[apart], y[apart], classes=2, keys={"who": who[~apart]})
    job = atoll.Job(atoll.FedAvg(softmax(), 1, None, 0.5), atoll.All(), rounds=10, metrics=[LogLoss()])
    found = atoll.compare(job, table.standardised().split(by="who"))
    mine = who[~apart] == 1
    one = Table(x[~apart][mine], y[~apart][mine], x[apart], y[apart], classes=2).standardised().split(1)
    assert found.metric == "log_loss"
    assert found.alone_all[1] == pytest.approx(atoll.simulate(job, one).curve("test.log_loss")[1][-1], abs=1e-5)
    assert found.alone_all[1] < 0.4, "columns that everybody's statistics squeeze into a point teach nothing"


def test_what_was_not_standardised_stays_as_it_is(tmp_path: Path) -> None:
    assert atoll.data.load("digits").split(4).scaled == ()
    wine = atoll.data.load("wine").split(3)
    assert wine.scaled == tuple(range(13))
    assert Federated.open(wine.save(tmp_path)).scaled == wine.scaled
