"""Statistics of a federation are those of its pooled samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parts.statistics import KMeans, Logit, Query, distances, newton, with_one

import atoll
from atoll.core.world import World
from atoll.data import Federated
from atoll.testing import check_method


def found(method: Any, data: Federated, rounds: int, **more: Any) -> atoll.Run:
    job = atoll.Job(method, atoll.All(), atoll.Channel([]), rounds, eval_every=rounds, **more)
    return atoll.simulate(job, data, workers=0)


@pytest.fixture(scope="module")
def cancer() -> Federated:
    return atoll.data.load("breast_cancer").split(8, by="power", seed=0)


@pytest.fixture(scope="module")
def images() -> Federated:
    return atoll.data.load("digits").split(20, by="dirichlet", alpha=0.5, seed=0)


def test_newton_finds_the_pooled_regression(cancer: Federated) -> None:
    from sklearn.linear_model import LogisticRegression

    run = found(Logit(), cancer, 20)
    x, y = with_one(cancer.train.x), cancer.train.y
    b = np.zeros(x.shape[1])
    for _ in range(20):
        made = newton(x, y, b)
        b = np.linalg.solve(made["xwx"] + np.eye(len(b)), made["xwz"])
    assert np.abs(run.vector - b).max() < 2e-14
    theirs = LogisticRegression(C=1.0, tol=1e-14, max_iter=500, solver="newton-cholesky", fit_intercept=False)
    assert np.abs(run.vector - theirs.fit(x, y).coef_[0]).max() < 1e-10
    assert run.curve("test.accuracy")[1][-1] > 0.95
    assert run.predict(cancer.test.x).shape == cancer.test.y.shape


def test_newton_stops_where_it_has_converged(cancer: Federated) -> None:
    run = found(Logit(), cancer, 50, stop=[atoll.Converged(1e-10)])
    assert "below" in run.reason
    assert len([f for f in run.facts if f["what"] == "round"]) < 15


def test_lloyd_moves_the_centres_as_on_pooled_samples(images: Federated) -> None:
    method = KMeans(10, float(images.train.x.max()))
    run = found(method, images, 15)
    x = images.train.x.reshape(len(images.train.x), -1).astype(np.float64)
    centres = World(0).public_rng("centres").uniform(0, method.high, (10, x.shape[1]))
    for _ in range(15):
        near = distances(x, centres).argmin(1)
        centres = np.stack([x[near == k].mean(0) if (near == k).any() else centres[k] for k in range(10)])
    assert np.array_equal(run.params["params"], centres)
    whole = found(method, atoll.data.load("digits").split(1, seed=0), 15)
    assert run.curve("test.inertia")[1][-1] == pytest.approx(whole.curve("test.inertia")[1][-1], rel=1e-12)
    assert run.curve("test.inertia")[1][-1] < run.curve("test.inertia")[1][0]


def test_a_query_counts_and_bisects(images: Federated) -> None:
    method = Query(high=float(images.train.x.max()))
    run = found(method, images, 40)
    x = images.train.x.reshape(len(images.train.x), -1).astype(np.float64)
    assert run.params["n"] == len(x)
    assert np.array_equal(run.params["labels"], np.bincount(images.train.y, minlength=10))
    assert np.abs(run.params["mean"] - x.mean(0)).max() < 1e-13
    assert np.abs(run.params["variance"] - x.var(0)).max() < 1e-12
    exact = np.quantile(x, method.quantiles, axis=0, method="inverted_cdf")
    assert np.abs(run.params["quantiles"] - exact).max() < method.high * 2.0**-39


@pytest.mark.parametrize("method", [Logit(), KMeans(), Query()])
def test_laws(method: Any, cancer: Federated) -> None:
    check_method(method, cancer)
