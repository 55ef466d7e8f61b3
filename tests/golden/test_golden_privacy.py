"""Differential privacy and secure sums on real MNIST images: numbers of papers. Marked: they need the data.

400 parties of 20 images, a tenth of them a round, one epoch of batches of 10 at rate 0.1, 100 rounds of softmax
regression.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

import atoll
from atoll.core.wire import Stage

pytestmark = pytest.mark.data

MODEL = atoll.models.softmax()
EXPECTED = atoll.Average("expected")


@lru_cache(maxsize=1)
def images() -> atoll.Federated:
    return atoll.data.load("mnist_t10k").split(400, by="iid", seed=0)


def train(*stages: Stage, rate: float = 0.1, combine: object = None, rounds: int = 100) -> atoll.Run:
    select = atoll.Poisson(rate) if rate < 1 else atoll.All()
    channel = atoll.Channel(stages, combine or atoll.Sum())  # type: ignore[arg-type]
    job = atoll.Job(atoll.FedAvg(MODEL, 1, 10, 0.1), select, channel, rounds=rounds, eval_every=rounds)
    return atoll.simulate(job, images(), seed=0)


def accuracy(run: atoll.Run) -> float:
    return run.curve("test.accuracy")[1][-1]


def test_central_noise_costs_little_and_local_noise_much() -> None:
    central = accuracy(train(atoll.Clip(0.3), EXPECTED, atoll.Gaussian(1.0)))
    local = accuracy(train(atoll.Clip(0.3), EXPECTED, atoll.Gaussian(1.0, "local")))
    assert central >= 0.85
    assert central - local >= 0.10


def test_a_larger_cohort_drowns_the_noise() -> None:
    few = accuracy(train(atoll.Clip(1.0), EXPECTED, atoll.Gaussian(1.0)))
    many = accuracy(train(atoll.Clip(1.0), EXPECTED, atoll.Gaussian(1.0), rate=1.0))
    assert many - few >= 0.05


def test_the_clip_finds_its_norm_from_either_side() -> None:
    """Without noise: with it, a norm that starts far too large first spoils the model (it then ends at .66)."""
    runs = [train(atoll.Clip(s, quantile=0.5), EXPECTED) for s in (0.01, 10.0)]
    low, high = (run.curve("clip_norm")[1][-1] for run in runs)
    assert max(low, high) / min(low, high) <= 1.25
    assert all(accuracy(run) >= 0.865 for run in runs)


def test_the_noise_is_as_long_as_its_formula_says() -> None:
    """z·S·√d / (q·N), to 3 %."""
    stages = (atoll.Clip(0.3), EXPECTED, atoll.Gaussian(1.0))
    quiet = (atoll.Clip(0.3), EXPECTED)
    noise = train(*stages, rounds=1).vector - train(*quiet, rounds=1).vector
    assert np.linalg.norm(noise) == pytest.approx(0.3 * np.sqrt(MODEL.bind((28, 28), 10).size) / 40, rel=0.03)


def test_secure_sums_train_as_well_as_plain_ones() -> None:
    plain = accuracy(train(atoll.Weigh()))
    secure = accuracy(train(atoll.Clip(2.0), atoll.Weigh(max_weight=20), atoll.Ring(16), combine=atoll.SecureSum()))
    assert abs(plain - secure) <= 0.003


def test_distributed_noise_trains_as_well_as_central_noise() -> None:
    central = accuracy(train(atoll.Clip(0.3), EXPECTED, atoll.Gaussian(1.0)))
    shared = train(
        atoll.Clip(0.3),
        EXPECTED,
        atoll.Ring(),
        atoll.Gaussian(1.0, "distributed", honest=0.9),
        combine=atoll.SecureSum(),
    )
    assert abs(accuracy(shared) - central) <= 0.02
    assert shared.facts[-1]["epsilon"] > 0
