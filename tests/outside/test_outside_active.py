"""A select that learns from reports: what it has learnt is in the checkpoint, and it learns the better model sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts.active import Active, Valued
from parts.diary import ASKED, Diary

import atoll
from atoll.core.effects import Replies
from atoll.core.method import History, Pick, Population
from atoll.core.world import World
from atoll.data import Federated
from atoll.testing import check_method, check_select

SELECT = Active(4, a1=0.5, a2=1.0, a3=0.25)


class Cut(Exception):
    """The end of a run, in a sink."""


def cut(note: Any) -> None:
    if note.what == "round" and note.facts["round"] == 6:
        raise Cut


def trained(data: Federated, **more: Any) -> tuple[atoll.Run | None, list[Any]]:
    """Train for ten rounds; return the run, and whom was asked and who answered."""
    ASKED.clear()
    job = atoll.Job(Valued(atoll.models.softmax()), Diary(SELECT), rounds=10, availability=atoll.Always(drop=0.2))
    run = None
    try:
        run = atoll.simulate(job, data, workers=0, **more)
    except Cut:
        assert more["sinks"]
    return run, list(ASKED)


def test_a_resumed_run_asks_the_same_cohorts(digits: Federated, tmp_path: Path) -> None:
    whole, asked = trained(digits)
    _, before = trained(digits, out=tmp_path, sinks=(cut,))
    (folder,) = tmp_path.iterdir()
    resumed, after = trained(digits, resume=folder)
    assert len(before) == 5
    assert before + after == asked
    assert len({tuple(cohort) for cohort, _ in asked}) > 5
    assert resumed is not None
    assert whole is not None
    assert resumed.vector.tobytes() == whole.vector.tobytes()


def test_a_party_keeps_its_value_until_it_reports_another() -> None:
    memory = SELECT.start(Population(np.ones(5)))
    replies = Replies(np.array([1, 3]), {"report/value": np.array([2.0, 0.5])})
    memory = SELECT.learn(memory, Pick(np.array([1, 2, 3])), replies)
    assert memory["value"].tolist() == [-1.0, 2.0, -1.0, 0.5, -1.0]
    assert (
        SELECT.learn(memory, Pick(np.array([0])), Replies(np.arange(0)))["value"].tolist() == memory["value"].tolist()
    )


def test_the_valuable_are_asked_and_the_rest_are_not() -> None:
    memory = {"value": np.arange(100.0)}
    population = Population(np.ones(100))
    picked = [Active(10, 0.75, 1.0, 0.0).pick(t, population, History(t), memory, World(0)).cohort for t in range(20)]
    assert np.concatenate(picked).min() >= 75
    uniform = [Active(10, 0.75, 1.0, 0.5).pick(t, population, History(t), memory, World(0)).cohort for t in range(20)]
    assert np.mean(np.concatenate(uniform) < 75) == pytest.approx(0.5 * 75 / 95, abs=0.08)


@pytest.mark.data
def test_on_a9a_it_learns_sooner_than_a_uniform_select() -> None:
    """Users of whom four fifths have no positive sample: as good in ten rounds as a uniform select in more."""
    from sklearn.metrics import roc_auc_score

    g, table = np.random.default_rng(0), atoll.data.load("a9a").split(1, seed=0)
    (x, y), (tx, ty) = table.train[0], (table.test.x, table.test.y)
    labels = [list(g.permutation(np.flatnonzero(y == label))) for label in (0, 1)]
    parts = []
    for k, n in enumerate(np.maximum(5, np.exp(g.normal(3.3, 1, 400))).astype(int)):
        positives = 0 if k % 5 else n // 2
        rows = [labels[1].pop() for _ in range(positives)] + [labels[0].pop() for _ in range(n - positives)]
        parts.append((x[rows], y[rows]))
    users = atoll.data.federate(parts, classes=2)

    def auc(select: Any, seed: int) -> float:
        job = atoll.Job(Valued(atoll.models.logistic(), 1, 10, 0.3), select, rounds=10)
        return float(roc_auc_score(ty, atoll.simulate(job, users, seed, workers=0).predict(tx)[:, 0]))

    active, uniform = ([auc(select, seed) for seed in range(3)] for select in (Active(20), atoll.Count(20)))
    assert np.mean(active) > np.mean(uniform) + 0.01
    assert np.mean(active) > 0.87


def test_laws(unequal: Federated) -> None:
    check_method(Valued(atoll.models.logistic()), unequal)
    check_select(SELECT)
    check_select(Diary(SELECT))
