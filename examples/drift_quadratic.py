"""Where FedAvg ends when parties differ: its fixed point on two quadratics, against the closed form.

Two parties hold f_i(x) = h_i/2 · (x − c_i)². With H local gradient steps of size η, FedAvg converges to
x_F = Σ g_i c_i / Σ g_i with g_i = 1 − (1 − η h_i)^H, and not to the optimum x* = Σ h_i c_i / Σ h_i: more local steps,
more drift. Karimireddy et al., SCAFFOLD, ICML 2020, arXiv 1910.06378, call it client drift; that FedAvg then ends at a
wrong point is where Mitra et al., FedLin, NeurIPS 2021, arXiv 2102.07053, start from.

    python examples/drift_quadratic.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import atoll
from atoll.models import functions

H, C, LR = np.array([1.0, 10.0]), np.array([-1.0, 1.0]), 0.05
OPTIMUM = float((H * C).sum() / H.sum())


def losses(x: Any, h: Any, c: Any) -> Any:
    """Return each row's loss: a row of features is one h, its label is c."""
    return h[:, 0] / 2 * (x - c) ** 2


def closed_form(steps: int) -> float:
    g = 1 - (1 - LR * H) ** steps
    return float((g * C).sum() / g.sum())


def fixed_point(steps: int) -> tuple[float, int]:
    """Run FedAvg until a round no longer moves x; return x and the rounds it took."""
    model = functions(lambda seed: np.zeros(1), losses=losses, dtype="float64")
    data = atoll.data.federate([([[h]], [c]) for h, c in zip(H, C, strict=True)], kind="real")
    job = atoll.Job(
        method=atoll.FedAvg(model, epochs=steps, batch=None, lr=LR),
        select=atoll.All(),
        channel=atoll.Channel([atoll.Average()], atoll.Sum()),
        rounds=500,
        stop=[atoll.Converged(1e-13)],
        name="drift",
    )
    run = atoll.simulate(job, data, workers=0)
    return float(run.vector[0]), run.facts[-1]["round"]


def main() -> None:
    print(f"optimum {OPTIMUM:.6f}\n")
    print("local steps   FedAvg ends at   closed form   difference   off the optimum   rounds")
    for steps in (1, 5, 10, 50):
        x, rounds = fixed_point(steps)
        wanted = closed_form(steps)
        print(f"{steps:11d} {x:16.6f} {wanted:13.6f} {abs(x - wanted):12.1e} {abs(x - OPTIMUM):17.5f} {rounds:8d}")


if __name__ == "__main__":
    main()
