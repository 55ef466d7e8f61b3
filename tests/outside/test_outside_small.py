"""A stage, a rule and a stop of ten lines each, run from Python."""

from __future__ import annotations

import numpy as np
import pytest
from parts.small import Medoid, Scale, Steady

import atoll
from atoll.core.method import History
from atoll.data import Federated
from atoll.testing import check_part, check_refusal, check_rule, check_stage


def test_laws() -> None:
    assert check_stage(Scale(0.5), lossless=True).l2 is None
    assert check_stage(Scale(0.5), first=(atoll.Clip(2.0),)).l2 == pytest.approx(1.0, rel=1e-5)
    check_rule(Medoid())
    check_part(Steady())


def test_all_three_in_a_job(digits: Federated) -> None:
    job = atoll.Job(
        atoll.FedAvg(atoll.models.softmax(), epochs=2),
        atoll.All(),
        atoll.Channel([Scale(0.25), atoll.Average()], atoll.Each(Medoid())),
        rounds=60,
        stop=[Steady("test.accuracy", 0.6, 3)],
    )
    run = atoll.simulate(job, digits, workers=0)
    assert run.reason == "test.accuracy was better than 0.6 in 3 evaluations"
    curve = run.curve("test.accuracy")[1]
    assert len(curve) < 61
    assert min(curve[-3:]) > 0.6 >= curve[-4]
    plain = atoll.simulate(job, digits, workers=2)
    assert plain.vector.tobytes() == run.vector.tobytes()


def test_a_scaled_mean_is_the_mean(digits: Federated) -> None:
    def trained(*stages: object) -> np.ndarray:
        job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), atoll.Channel(stages), rounds=3)
        return atoll.simulate(job, digits, workers=0).vector

    # A power of two changes no digit.
    assert np.array_equal(trained(Scale(0.5), atoll.Weigh()), trained(atoll.Weigh()))


def test_a_rule_of_ones_own_is_refused_where_others_are(digits: Federated) -> None:
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), channel=atoll.Channel([atoll.Weigh()], atoll.Each(Medoid())))
    check_refusal(lambda: atoll.assemble(job, digits), "Medoid", "Average()")


def test_a_stop_knows_which_way_is_better() -> None:
    falling = History(rounds=3, curves={"test.loss": ((1, 0.5), (2, 0.4), (3, 0.3))}, better={"loss": "low"})
    assert Steady("test.loss", 0.45, 2)(falling) is not None
    assert Steady("test.loss", 0.35, 2)(falling) is None
