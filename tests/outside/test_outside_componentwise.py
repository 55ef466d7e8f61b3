"""Component-wise boosting selects the learners that it would select on pooled data, whoever is away now and then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parts.componentwise import Componentwise, Rest, basis, predicted, solved

import atoll
from atoll.data import Federated
from atoll.testing import check_method, check_select

M = Componentwise(200)


@pytest.fixture(scope="module")
def sites() -> Federated:
    """Four sites of which two have an effect of their own."""
    data = atoll.data.load("diabetes").split(4, by="power", seed=0, test=0.2)
    slopes = np.array([0.6, 0.0, -0.6, 0.0])

    def bent(silos: Any) -> Any:
        return replace(silos, y=np.concatenate([y + s * x[:, 1] for (x, y), s in zip(silos, slopes, strict=True)]))

    return replace(data, train=bent(data.train), local=bent(data.local))


def boosted(data: Federated, drop: float = 0.0, select: Any = None, rounds: int = 200) -> atoll.Run:
    available = atoll.Always(drop=drop)
    job = atoll.Job(M, select or Rest(), atoll.Channel([]), rounds, eval_every=rounds, availability=available)
    return atoll.simulate(job, data, workers=0)


def pooled(data: Federated) -> tuple[np.ndarray, np.ndarray]:
    """The algorithm with all samples in one place: the order of learners, the shared coefficients."""
    at = [(basis(x), y.astype(np.float64)) for x, y in data.train]
    xx = [np.einsum("jnp,jnq->jpq", b, b) for b, _ in at]
    offset = np.concatenate([y for _, y in at]).mean()
    shared, own = np.zeros(xx[0].shape[:2]), np.zeros((len(at), *xx[0].shape[:2]))
    order = np.zeros((M.steps, 2), np.int64)
    for m in range(M.steps):
        res = [y - offset - np.einsum("jnp,jp->n", b, shared + o) for (b, y), o in zip(at, own, strict=True)]
        xr = [np.einsum("jnp,n->jp", b, r) for (b, _), r in zip(at, res, strict=True)]
        theta = solved(sum(xx), sum(xr), M.penalty)
        fits = [solved(*pair, M.own_penalty) for pair in zip(xx, xr, strict=True)]
        sse = [[np.square(r - np.einsum("jnp,jp->jn", b, th)).sum(1) for th in (theta, fit)]
               for (b, _), r, fit in zip(at, res, fits, strict=True)]  # fmt: skip
        both = np.sum(sse, axis=0)
        local = int(both[1].min() < both[0].min() - 1e-9)
        order[m] = j, _ = int(both[local].argmin()), local
        if local:
            own[:, j] += M.nu * np.stack(fits)[:, j]
        else:
            shared[j] += M.nu * theta[j]
    return order, shared


@pytest.mark.parametrize("select", [Rest(), atoll.All()])
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_selects_as_on_pooled_data(sites: Federated, drop: float, select: Any) -> None:
    order, shared = pooled(sites)
    assert 20 < order[:, 1].sum() < 180
    run = boosted(sites, drop, select, 200 if drop == 0 else 230)
    assert int(run.state["m"]) == 200
    assert np.array_equal(run.state["order"], order)
    assert np.abs(run.params["shared"] - shared).max() < 1e-10
    asks = [f for f in run.facts if f["what"] == "round"]
    assert (len(asks) > 600) == (drop > 0)  # an absent site is asked again


def test_only_those_who_are_missing_are_asked_again(sites: Federated) -> None:
    asks = [f for f in boosted(sites, 0.3, rounds=20).facts if f["what"] == "round"]
    assert {f["asked"] for f in asks} == {1, 2, 3, 4}
    left = 4
    for f in asks:
        assert f["asked"] == left
        left = left - f["answered"] or 4


def test_a_site_is_evaluated_with_its_own_effects(sites: Federated) -> None:
    run = boosted(sites)
    shared = [np.square(y - predicted(run.params, np.zeros((10, 2)), x)) for x, y in sites.local]
    assert run.curve("local.mse")[1][-1] < 0.9 * np.concatenate(shared).mean()


def test_laws(sites: Federated) -> None:
    check_method(M, sites)


def test_laws_of_the_select() -> None:
    check_select(Rest())
