"""Waiting for nobody: FedBuff beside rounds that wait for everybody, and for the first ten of thirteen.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous Aggregation,
AISTATS 2022, arXiv 2106.06639. In all three ways 100 parties are at work at a time; they differ in how many answers a
step of the model takes, and in what becomes of the others. Time is simulated: every party has a speed of its own, drawn
from a lognormal distribution, and good and bad rounds. How much waiting costs depends on that distribution above all;
the paper, with other delays, data and models, found FedBuff 3.3 times as efficient as rounds. 1,000 parties with some
60 images of MNIST each (Dirichlet 0.5), a softmax regression, E = 1, B = 10, lr 0.05.

    python examples/fedbuff.py --quick          the digits that come with the install: seconds
    python examples/fedbuff.py --out figures    MNIST, a minute or two; fedbuff.png goes to that folder
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import atoll
from atoll.data import DataMissing
from atoll.data.federated import Federated

Curve = tuple[list[float], list[float]]


def ways(at_work: int) -> dict[str, atoll.Buffered]:
    """One part, three ways: with `most = 0` whoever is late is not waited for, and what it did is lost."""
    return {
        "everybody": atoll.Buffered(buffer_size=at_work, max_staleness=0),
        "10 of 13": atoll.Buffered(buffer_size=round(at_work / 1.3), max_staleness=0),
        "FedBuff": atoll.Buffered(buffer_size=at_work // 10),
    }


def train(data: Federated, combine: atoll.Buffered, at_work: int, target: float, seed: int) -> Curve:
    """Return simulated seconds and accuracy, until the target is reached."""
    job = atoll.Job(
        method=atoll.FedAvg(atoll.models.softmax(), epochs=1, batch=10, lr=0.05),
        select=atoll.Count(at_work),
        channel=atoll.Channel([atoll.Weigh()], combine),
        rounds=2000,
        stop=[atoll.Target("test.accuracy", target)],
    )
    run = atoll.simulate(job, data, seed)
    return [0.0, *run.curve("virtual")[1]], run.curve("test.accuracy")[1]


def draw(curves: dict[str, Curve], target: float, folder: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for name, (seconds, accuracy) in curves.items():
        axes.plot(seconds[1:], accuracy[1:], label=name)
    axes.axhline(target, color="grey", linestyle=":", linewidth=0.8)
    axes.set(xscale="log", xlabel="simulated seconds", ylabel="test accuracy", title="What a step waits for")
    axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fedbuff.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def main() -> None:
    options = argparse.ArgumentParser(description="Simulated time to a target, in rounds and without.")
    options.add_argument("--quick", action="store_true", help="digits: seconds")
    options.add_argument("--seeds", type=int, default=3, help="how many runs of each")
    options.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    chosen = options.parse_args()
    try:
        table = atoll.data.load("digits" if chosen.quick else "mnist")
    except DataMissing as missing:
        print(f"skipped: {missing}")
        return
    data = table.split(100 if chosen.quick else 1000, by="dirichlet", alpha=0.5, seed=0)
    at_work, target = (50, 0.85) if chosen.quick else (100, 0.88)

    print(
        f"{at_work} parties at work, simulated seconds to {target:.0%}: mean (least to most) of {chosen.seeds} seeds\n"
    )
    print("a step waits for   answers   steps   seconds                   times faster")
    slowest, curves = np.ones(chosen.seeds), dict[str, Curve]()
    for name, combine in ways(at_work).items():
        found = [train(data, combine, at_work, target, seed) for seed in range(chosen.seeds)]
        curves[name] = found[0]
        seconds = np.array([curve[0][-1] for curve in found])
        slowest = seconds if name == "everybody" else slowest
        steps = np.mean([len(curve[0]) - 1 for curve in found])
        spread = f"{seconds.mean():8.1f} ({seconds.min():.1f} to {seconds.max():.1f})"
        faster = slowest / seconds
        times = f"{faster.mean():.1f} ({faster.min():.1f} to {faster.max():.1f})"
        print(f"{name:<16} {combine.buffer_size:9d} {steps:7.0f}   {spread:<25} {times}", flush=True)
    print(f"\npicture: {draw(curves, target, chosen.out)}")


if __name__ == "__main__":
    main()
