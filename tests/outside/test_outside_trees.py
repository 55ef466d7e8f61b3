"""Boosted trees, a phase a level: many parties grow the trees that one party with all samples grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parts.trees import Boost

import atoll
from atoll.data import Federated
from atoll.testing import check_method

SUMS = atoll.Channel([], atoll.Sum())


def grown(method: Boost, data: Federated, rounds: int, **more: Any) -> atoll.Run:
    job = atoll.Job(method, atoll.All(), SUMS, rounds, eval_every=rounds)
    return atoll.simulate(job, data, workers=more.pop("workers", 0), **more)


def same(a: atoll.Run, b: atoll.Run) -> None:
    assert np.array_equal(a.params["feature"], b.params["feature"])
    assert np.abs(a.params["cut"] - b.params["cut"]).max() <= 1e-9
    assert np.abs(a.params["leaf"] - b.params["leaf"]).max() <= 1e-9


@pytest.fixture(scope="module")
def pooled() -> Federated:
    return atoll.data.load("breast_cancer").split(1, seed=0)


@pytest.fixture(scope="module")
def parties() -> Federated:
    return atoll.data.load("breast_cancer").split(7, by="power", seed=0)


def test_seven_parties_grow_the_trees_of_one(pooled: Federated, parties: Federated) -> None:
    assert len(set(parties.train.sizes)) > 3
    many, one = (grown(Boost(), data, 20) for data in (parties, pooled))
    same(many, one)
    assert many.curve("test.accuracy")[1][-1] > 0.95
    assert many.curve("test.accuracy")[1][-1] == one.curve("test.accuracy")[1][-1]


def test_each_level_has_a_wire_of_its_own(parties: Federated) -> None:
    run = grown(Boost(), parties, 2)
    rounds = [f for f in run.facts if f["what"] == "round"]
    levels = [f"level{k}" for k in range(3)]
    assert [f["phase"] for f in rounds] == ["moments", *levels, *levels]
    assert [f["round"] for f in rounds] == [1, 1, 1, 1, 2, 2, 2]
    sent = [8 * n for n in (1 + 2 * 30, 960, 2 * 960, 4 * 960)]
    beside = [f["bytes_up"] / 7 - numbers for f, numbers in zip(rounds, [*sent, *sent[1:]], strict=True)]
    assert all(0 < names < 200 for names in beside)


def test_a_party_bins_its_samples_once(parties: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    binned = []
    prepare = Boost.prepare

    def counted(self: Boost, constant: Any, group: Any) -> Any:
        binned.extend(group.me.tolist())
        return prepare(self, constant, group)

    monkeypatch.setattr(Boost, "prepare", counted)
    grown(Boost(), parties, 3)
    assert sorted(binned) == list(range(7))


def test_many_processes_and_single_parties_grow_the_same_trees(parties: Federated) -> None:
    run = grown(Boost(), parties, 3)
    same(run, grown(Boost(), parties, 3, workers=2))
    same(run, grown(Boost(), parties, 3, loop=True))


def test_who_was_away_catches_up(parties: Federated) -> None:
    """A party that is lost misses a histogram, and its scores know all trees when it is back."""
    method = Boost(trees=8)
    job = atoll.Job(method, atoll.All(), SUMS, 8, eval_every=8, availability=atoll.Always(drop=0.3))
    run = atoll.simulate(job, parties, workers=0)
    assert run.curve("test.accuracy")[1][-1] > 0.93


def test_a_run_that_was_cut_goes_on_with_its_scores(parties: Federated, tmp_path: Any) -> None:
    class Cut(Exception):
        pass

    def cut(note: Any) -> None:
        if note.what == "round" and note.facts["round"] == 4:
            raise Cut

    with pytest.raises(Cut):
        grown(Boost(), parties, 6, out=tmp_path, sinks=(cut,))
    (folder,) = tmp_path.iterdir()
    same(grown(Boost(), parties, 6, resume=folder), grown(Boost(), parties, 6))


@pytest.mark.data
def test_on_a9a_the_trees_are_as_good_as_those_of_scikit_learn() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    table = atoll.data.load("a9a")
    method = Boost(trees=5, depth=4, lr=0.3, bins=2)
    many, one = (grown(method, table.split(n, seed=0), 5) for n in (10, 1))
    same(many, one)
    pooled = table.split(1, seed=0)
    theirs = HistGradientBoostingClassifier(
        max_iter=5, learning_rate=0.3, max_depth=4, l2_regularization=1.0, min_samples_leaf=1, early_stopping=False
    ).fit(*pooled.train[0])
    x, y = pooled.test.x, pooled.test.y
    mine, other = roc_auc_score(y, many.predict(x)), roc_auc_score(y, theirs.predict_proba(x)[:, 1])
    assert mine == pytest.approx(other, abs=0.004)


def test_laws(parties: Federated) -> None:
    check_method(Boost(), parties)
