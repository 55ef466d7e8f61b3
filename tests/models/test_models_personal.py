"""One parameter vector for each party: a batch of them is each of them alone; the pull has a centre of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.party import Group
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.models import Fit, Model

N = 5
MODELS = {
    "tiny": atoll.models.softmax,
    "large": lambda **more: atoll.models.mlp((200, 200), **more),
}


def group() -> Group:
    g = np.random.default_rng(0)
    parts = [(g.normal(size=(3 + 4 * k, 6)).astype(np.float32), g.integers(0, 3, 3 + 4 * k)) for k in range(N)]
    data = atoll.data.federate(parts)
    return Group(np.arange(N), data.train, np.arange(N), World(0), 0)


@pytest.fixture(params=["jax", "torch"])
def backend(request: Any) -> str:
    if request.param == "torch":
        pytest.importorskip("torch")
    return str(request.param)


@pytest.fixture(params=list(MODELS))
def model(request: Any, backend: str) -> Model:
    return MODELS[request.param](backend=backend).bind((6,), 3)  # type: ignore[no-untyped-call]


def near(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("how", [Fit(2, 4), Fit(2, 4, prox=0.3)])
def test_equal_rows_are_one_vector_and_each_row_is_its_party_alone(model: Model, how: Fit) -> None:
    some, w = group(), model.init(0)
    same = np.repeat(w[None], N, 0)
    near(model.fit(same, some, how, 0.1), model.fit(w, some, how, 0.1))
    near(model.grad(same, some), model.grad(w, some))
    near(model.scores_of(same, some), model.scores_of(w, some))
    for name, leaf in model.evaluate(w, some).items():
        near(model.evaluate(same, some)[name], leaf)
    own = np.stack([model.init(k) for k in range(N)])
    centre = np.stack([model.init(9 + k) for k in range(N)])
    fitted, slopes = model.fit(own, some, how, 0.1, centre=centre), model.grad(own, some)
    sums = model.evaluate(own, some)
    for k in range(N):
        alone = some.only(k)
        near(model.fit(own[k], alone, how, 0.1, centre=centre[k])[0], fitted[k])
        near(model.grad(own[k], alone)[0], slopes[k])
        for name, leaf in model.evaluate(own[k], alone).items():
            near(sums[name][k], leaf[0])


def test_the_pull_goes_to_the_centre_by_hand(backend: str) -> None:
    """One step on f(w) from w: w − lr·(∇f(w) + prox·(w − centre))."""
    model = MODELS["tiny"](backend=backend, dtype="float64").bind((6,), 3)  # type: ignore[no-untyped-call]
    some, w = group(), model.init(0)
    centre = model.init(1) + 1.0
    moved = model.fit(w, some, Fit(1, None, prox=0.5), 0.1, centre=centre)
    np.testing.assert_allclose(moved, w - 0.1 * (model.grad(w, some) + 0.5 * (w - centre)), atol=1e-10)
    start = model.fit(w, some, Fit(3, None, prox=0.5), 0.1, centre=w)
    np.testing.assert_allclose(start, model.fit(w, some, Fit(3, None, prox=0.5), 0.1), atol=1e-12)


def test_other_shapes_are_refused() -> None:
    model = MODELS["tiny"]().bind((6,), 3)  # type: ignore[no-untyped-call]
    with pytest.raises(Mismatch, match="or a row of them for each of the 5 parties"):
        model.grad(np.zeros((4, model.size), np.float32), group())
