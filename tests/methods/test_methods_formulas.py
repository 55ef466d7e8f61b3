"""Methods against their formulas, written down in NumPy or solved by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.method import Population, RoundInfo
from atoll.core.world import World
from atoll.job.file import parse
from atoll.models import functions

W = np.array([1.0, -2.0, 0.5, 0.0])
CHANGES = [np.array([0.3, -0.1, 0.0, 2.0]), np.array([-0.2, -0.4, 0.05, 1.0])]
B1, B2, TAU, LR = 0.8, 0.95, 0.02, 0.3


def plain(w: np.ndarray, lr: float) -> np.ndarray:
    for d in CHANGES:
        w = w + lr * d
    return w


def momentum(w: np.ndarray) -> np.ndarray:
    m = np.zeros_like(w)
    for d in CHANGES:
        m = B1 * m + d
        w = w + LR * m
    return w


def adaptive(w: np.ndarray, second: Callable[..., np.ndarray], corrected: bool = False, b1: float = B1) -> np.ndarray:
    """Algorithm 2 of Reddi et al. 2021; `second` is the line of the second moment."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, d in enumerate(CHANGES, 1):
        m, v = b1 * m + (1 - b1) * d, second(v, d)
        one, two = (1 - b1**t, 1 - B2**t) if corrected else (1, 1)
        w = w + LR * m / one / (np.sqrt(v / two) + TAU)
    return w


def adam(v: np.ndarray, d: np.ndarray) -> np.ndarray:
    return B2 * v + (1 - B2) * d**2


def yogi(v: np.ndarray, d: np.ndarray) -> np.ndarray:
    return v - (1 - B2) * d**2 * np.sign(v - d**2)


def adagrad(v: np.ndarray, d: np.ndarray) -> np.ndarray:
    return v + d**2


MODEL = functions(lambda seed: W, losses=lambda w, x, y: ((w - x) ** 2).sum(1) / 2, dtype="float64")
MOMENTS = {"server_lr": LR, "b1": B1, "b2": B2, "eps": TAU}


@pytest.mark.parametrize(
    ("method", "formula"),
    [
        (atoll.FedAvg(MODEL), lambda w: plain(w, 1.0)),
        (atoll.FedAvg(MODEL, server=atoll.ServerOptimiser(lr=LR)), lambda w: plain(w, LR)),
        (atoll.fedavgm(MODEL, server_lr=LR, momentum=B1), momentum),
        (atoll.fedadam(MODEL, **MOMENTS), lambda w: adaptive(w, adam)),
        (atoll.fedyogi(MODEL, **MOMENTS), lambda w: adaptive(w, yogi)),
        (atoll.fedadam(MODEL, **MOMENTS, bias_correction=True), lambda w: adaptive(w, adam, True)),
        (atoll.fedyogi(MODEL, **MOMENTS, bias_correction=True), lambda w: adaptive(w, yogi, True)),
        (atoll.fedadagrad(MODEL, server_lr=LR, eps=TAU), lambda w: adaptive(w, adagrad, b1=0.0)),
    ],
    ids=["fedavg", "server.lr", "fedavgm", "fedadam", "fedyogi", "fedadam+", "fedyogi+", "fedadagrad"],
)
def test_two_merges_are_the_formula(method: Any, formula: Callable[[np.ndarray], np.ndarray]) -> None:
    state = method.init(World(0), Population(np.ones(3)))
    assert state["params"].tolist() == W.tolist()
    for t, change in enumerate(CHANGES):
        state = method.server_update(state, {"delta": change}, RoundInfo(t, 3, 3, 3, np.arange(3)))
    assert state["params"].dtype == np.float64
    assert np.allclose(state["params"], formula(W), rtol=0, atol=1e-12)
    assert state["t"] == 2


def test_with_bias_correction_it_is_the_adam_of_optax() -> None:
    job = 'data = "digits"\nmethod = { use = "fedadam", model = "softmax", bias_correction = true }\n'
    server = parse(job, "job.toml").job.method.server
    assert dict(server.optimiser.options)["bias_correction"] is True
    state = server.start(W)
    other = atoll.ServerOptimiser(atoll.optimiser("adam", b1=0.9, b2=0.99, eps=1e-3), 0.01)
    w, theirs, memory = W, W, other.start(W)
    for change in CHANGES:
        (w, state), (theirs, memory) = server.step(w, change, state), other.step(theirs, change, memory)
    assert w == pytest.approx(theirs, abs=1e-12)


def test_fedprox_ends_at_the_proximal_points() -> None:
    """h/2·(x − c)² + mu/2·(x − w)² is least at (h·c + mu·w)/(h + mu); the server takes the mean over the parties."""
    mu, h, c = 0.7, np.array([1.0, 2.5]), np.array([4.0, -1.0])
    model = functions(lambda seed: np.zeros(1), losses=lambda x, a, b: a[:, 0] / 2 * (x - b) ** 2, dtype="float64")
    data = atoll.data.federate([([[a]], [b]) for a, b in zip(h, c, strict=True)], kind="real")
    method = atoll.FedProx(model, mu, epochs=300, batch=None, lr=0.2)
    for rounds in (1, 2, 3):
        w = 0.0
        for _ in range(rounds):
            w = float(np.mean((h * c + mu * w) / (h + mu)))
        run = atoll.simulate(atoll.Job(method, atoll.All(), rounds=rounds), data)
        assert run.vector == pytest.approx([w], abs=1e-12)
