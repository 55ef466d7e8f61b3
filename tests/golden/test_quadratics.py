"""FedAvg's fixed points on two quadratics (papers: drift), in closed form and as published."""

from __future__ import annotations

import numpy as np
import pytest

import atoll

H, C, LR = np.array([1.0, 10.0]), np.array([-1.0, 1.0]), 0.05


def losses(p: dict[str, object], x: object, y: object) -> object:
    return 0.5 * x[:, 0] * (p["w"] - x[:, 1]) ** 2  # type: ignore[index, operator]


@pytest.mark.parametrize(("steps", "published"), [(1, 0.81818), (5, 0.62138), (10, 0.42688), (50, 0.04001)])
def test_fixed_points(steps: int, published: float) -> None:
    parts = [(np.array([[h, c]]), np.zeros(1, np.float32)) for h, c in zip(H, C, strict=True)]
    data = atoll.data.federate(parts, kind="real")
    model = atoll.models.functions(lambda seed: {"w": np.zeros(())}, losses=losses)
    from dataclasses import replace

    method = atoll.FedAvg(replace(model, dtype="float64"), epochs=steps, batch=None, lr=LR)
    run = atoll.simulate(atoll.Job(method, atoll.All(), rounds=400, eval_every=400), data)
    g = 1 - (1 - LR * H) ** steps
    assert run.vector[0] == pytest.approx((g * C).sum() / g.sum(), abs=1e-9)
    assert run.vector[0] == pytest.approx(published, abs=1e-5)
