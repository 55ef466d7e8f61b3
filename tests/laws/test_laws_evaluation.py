"""What is seen of a model: means over samples, the spread over parties, and in which rounds it is evaluated."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.effects import Replies
from atoll.data.federated import Federated
from atoll.models import linear, softmax
from atoll.programs.evaluate import summarise

CLASSES, NUMBERS = softmax().bind((1,), 2).evaluation, linear().bind((1,), 1).evaluation


def test_accuracies_by_hand() -> None:
    """Party k of twenty has 10·(k + 1) samples and a share of k/20 right. One more has none and does not count."""
    n = np.array([*(10.0 * (np.arange(20) + 1)), 0.0])
    right = np.array([*(np.arange(20) / 20), 0.0])
    metrics, spread = summarise(Replies(np.arange(21), {"n": n, "loss": 3 * n, "correct": right * n}), CLASSES)
    samples = 10 * 210
    assert metrics == pytest.approx({"loss": 3.0, "accuracy": 10 * sum((k + 1) * k / 20 for k in range(20)) / samples})
    each = spread.pop("each")
    assert spread == pytest.approx({
        "parties": 20,
        "accuracy.mean": 9.5 / 20,  # of parties, whatever their size
        "accuracy.worst10": (0 + 1 / 20) / 2,  # two of twenty
        "accuracy.best": 19 / 20,
    })  # fmt: skip
    assert each == pytest.approx([k / 20 for k in range(20)])


def test_errors_by_hand() -> None:
    """The worst have the largest error; r² holds the error of all against the spread of all labels."""
    y = [np.array([1.0, 3.0]), np.array([2.0]), np.array([6.0, 8.0, 10.0])]
    squares = np.array([4.0, 9.0, 3.0])
    sums = {"n": [len(v) for v in y], "y": [v.sum() for v in y], "yy": [(v**2).sum() for v in y]}
    leaves = {name: np.array(leaf, float) for name, leaf in {**sums, "loss": squares / 2, "squares": squares}.items()}
    metrics, spread = summarise(Replies(np.arange(3), leaves), NUMBERS)
    whole = np.concatenate(y)
    r2 = 1 - 16 / ((whole - whole.mean()) ** 2).sum()
    assert metrics == pytest.approx({"loss": 8 / 6, "mse": 16 / 6, "r2": r2})
    assert spread.pop("each") == pytest.approx([1, 2, 9])
    assert spread == pytest.approx({"parties": 3, "mse.mean": 4.0, "mse.worst10": 9.0, "mse.best": 1.0})


def test_one_party_has_no_spread() -> None:
    leaves = {"n": np.array([4.0]), "loss": np.array([2.0]), "correct": np.array([3.0])}
    assert summarise(Replies(np.arange(1), leaves), CLASSES) == ({"loss": 0.5, "accuracy": 0.75}, {"parties": 1})


@pytest.mark.parametrize(
    ("rounds", "eval_every", "looks"), [(7, 3, [0, 3, 6, 7]), (6, 3, [0, 3, 6]), (2, 5, [0, 2]), (3, 1, [0, 1, 2, 3])]
)
def test_evaluations_are_at_the_start_every_so_often_and_at_the_end(
    rounds: int, eval_every: int, looks: list[int], unequal: Federated
) -> None:
    job = atoll.Job(atoll.FedSGD(atoll.models.softmax()), atoll.All(), rounds=rounds, eval_every=eval_every)
    run = atoll.simulate(job, unequal, workers=0)
    assert run.curve("test.accuracy")[0] == looks
    assert [f["round"] for f in run.facts if f["what"] == "round"] == list(range(1, rounds + 1))
