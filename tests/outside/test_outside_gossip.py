"""A gossip of many peers is one program: it equals the plain loop, and models meet as fast as the ring lets them."""

from __future__ import annotations

import numpy as np
import pytest
from parts.gossip import Gossip, gradient, ring

import atoll
from atoll.core.world import World
from atoll.data import Federated
from atoll.testing import check_program

N = 16
WORLD = World.simulated(0)


@pytest.fixture(scope="module")
def peers() -> Federated:
    g, w = np.random.default_rng(0), np.array([1.0, -2.0, 0.5, 3.0])
    parts = []
    for k in range(N):
        x = g.normal(0.1 * k, 1, (10 + k, 4))
        parts.append((x, x @ w + g.normal(0, 0.1, len(x))))
    return atoll.data.federate(parts, kind="real")


def gossiped(rounds: int, lr: float, data: Federated) -> tuple[np.ndarray, list[float]]:
    """Run in the simulator; return the models, and the distance from their mean before each round."""
    run = atoll.simulate_roles(atoll.RoleJob(Gossip(lr), {"peer": "peers"}, rounds), {"peer": data})
    return run.models["peer"]["w"], [fact["consensus"] for fact in run.facts if fact["what"] == "round"]


def start() -> np.ndarray:
    return np.stack([WORLD.public_rng("start", k).normal(size=4) for k in range(N)])


def plain(data: Federated, rounds: int, lr: float) -> np.ndarray:
    models = start()
    for _ in range(rounds):
        slopes = [gradient(w, x, y) for w, (x, y) in zip(models, data.train, strict=True)]
        near = (models + np.roll(models, 1, 0) + np.roll(models, -1, 0)) / 3
        models = near - lr * np.stack(slopes)
    return models


def test_equals_the_plain_loop(peers: Federated) -> None:
    models, _ = gossiped(40, 0.05, peers)
    assert np.abs(models - plain(peers, 40, 0.05)).max() < 1e-12


def test_obeys_the_laws_of_programs(peers: Federated) -> None:
    run = check_program(Gossip(0.05), {"peer": peers}, rounds=2)
    assert np.abs(run.models["peer"]["w"] - plain(peers, 2, 0.05)).max() < 1e-12


def test_models_meet_at_the_rate_of_the_second_eigenvalue(peers: Federated) -> None:
    second = np.sort(np.abs(np.linalg.eigvalsh(ring(N))))[-2]
    assert second == pytest.approx((1 + 2 * np.cos(2 * np.pi / N)) / 3, abs=1e-12)
    assert second == pytest.approx(0.949253, abs=1e-6)
    models, apart = gossiped(120, 0.0, peers)
    ratios = np.array(apart[1:]) / np.array(apart[:-1])
    assert (ratios <= second + 1e-9).all()
    assert ratios[60:] == pytest.approx(second, rel=1e-3)
    assert models.mean(0) == pytest.approx(start().mean(0), abs=1e-12)  # mixing loses nothing


def test_peers_learn_what_all_samples_say(peers: Federated) -> None:
    models, apart = gossiped(400, 0.02, peers)
    alone = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in peers.train]
    best = np.array([1.0, -2.0, 0.5, 3.0])
    assert np.abs(models - best).max() < 0.1
    assert np.abs(models - best).mean() < np.abs(np.stack(alone) - best).mean()
    assert apart[-1] < 0.05 * apart[0]
