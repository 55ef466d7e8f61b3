"""Compression on real MNIST: McMahan's 2NN, ten of a hundred IID parties a round. Marked: it needs the data."""

from __future__ import annotations

import pytest

import atoll
from atoll.core.wire import Stage
from atoll.stages.quantise import Quantise, Sign
from atoll.stages.rotate import Rotate
from atoll.stages.sparsify import TopK

pytestmark = [pytest.mark.data, pytest.mark.slow]


def result(data: atoll.Federated, *stages: Stage, rounds: int = 40) -> tuple[float, float]:
    """Return the accuracy after some rounds and the bytes that a party sends in one."""
    job = atoll.Job(
        atoll.FedAvg(atoll.models.mlp(), epochs=1, batch=10, lr=0.1),
        atoll.Uniform(0.1),
        atoll.Channel([atoll.Weigh(), *stages]),
        rounds=rounds,
        eval_every=rounds,
    )
    run = atoll.simulate(job, data, seed=0)
    return run.curve("test.accuracy")[1][-1], atoll.assemble(job, data).wire.row.bytes


def test_few_bytes_cost_little_accuracy() -> None:
    data = atoll.data.load("mnist").split(100, by="iid", seed=0)
    plain, whole = result(data)
    assert plain > 0.96
    sparse, sent = result(data, TopK(0.05), Quantise(8))
    assert sparse > plain - 0.01
    assert sent < 0.03 * whole
    drive, sent = result(data, Rotate(), Sign(False, "drive"))
    assert drive > plain - 0.005
    assert sent < 0.032 * whole


@pytest.mark.nightly
def test_one_number_in_a_hundred_is_enough_if_parties_come_back() -> None:
    """In 200 rounds a party is asked some twenty times, and what it left out gets its turn."""
    data = atoll.data.load("mnist").split(100, by="iid", seed=0)
    plain, whole = result(data, rounds=200)
    largest, sent = result(data, TopK(0.01), rounds=200)
    assert largest > plain - 0.01
    assert sent < 0.03 * whole
