"""Secure aggregation hides a model in a sum; sums of many rounds give it back. Whole batches do not.

So, Ali, Güler, Jiao, Avestimehr: Securing Secure Aggregation: Mitigating Multi-Round Privacy Leakage in Federated
Learning, AAAI 2023, arXiv 2106.03328. The server sees the sum of a round's models and knows who took part. If 8 of 40
parties take part at random and their models stay as they are, least squares gives every single model after 40 rounds.
Cohorts of whole batches of T parties keep the rank at 40/T: the best estimate is the mean of a batch, which is off by
√(1 − 1/T) of a model's length where models are independent of each other. What it costs is rounds in which too few
batches are whole.

First, models are random vectors; beside them stands what theory says. Then they are trained: MNIST, each party with
one or two digits (without MNIST, the digits that come with Atoll). Every party starts from the model that the server
sent, so the server knows that part of each sum and takes it off: what it looks for are updates. Of a batch it finds the
mean of updates, off by about √(1 − 1/T) of an update's length. An update is short beside a model. Whoever sums whole
models shows each of them up to that little. So updates, not models, go under secure sums (`FedAvg` sends updates).

    python examples/so_2023_multiround.py                 three tables and multiround.png
    python examples/so_2023_multiround.py --out figures   the picture goes to that folder
    python examples/so_2023_multiround.py --train         and accuracy on MNIST: some minutes
"""

from __future__ import annotations

import argparse
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

import atoll
from atoll.attacks.multiround import leak, recover
from atoll.core.method import Population, RoundInfo, Select
from atoll.core.party import Group
from atoll.core.tree import Array, flatten, unflatten
from atoll.core.world import World
from atoll.data import DataMissing, Federated
from atoll.job.assemble import summary_of
from atoll.select.batches import Batches, LeastServed, Partition
from atoll.select.metrics import multi_round, theory

PARTIES, COHORT, SIZE, BEFORE, ROUNDS = 40, 8, 200, 50, 80
ATTACKED: dict[str, tuple[Select, int]] = {
    "random": (atoll.Count(COHORT), 1),
    "least served": (LeastServed(COHORT), 1),
    "batches, T=2": (Batches(COHORT, 2), 2),
    "batches, T=4": (Batches(COHORT, 4), 4),
    "groups, T=8": (Partition(COHORT), 8),
}


def attack() -> dict[str, tuple[list[int], list[float]]]:
    """Return rank and mean relative error after every round."""
    models = np.random.default_rng(0).normal(size=(PARTIES, SIZE))
    curves = {}
    for name, (select, _) in ATTACKED.items():
        matrix = multi_round(select, PARTIES, ROUNDS).matrix
        seen = [matrix[:t] for t in range(1, ROUNDS + 1)]
        ranks = [int(np.linalg.matrix_rank(rows.astype(float))) for rows in seen]
        curves[name] = ranks, [float(leak(rows, models).mean()) for rows in seen]
    return curves


def print_attack(curves: dict[str, tuple[list[int], list[float]]]) -> None:
    print(f"{PARTIES} parties, {COHORT} in a round, everybody online: what least squares finds, and what theory says\n")
    print("select          rank  theory   error after 10      40      80 rounds   theory")
    for name, (ranks, errors) in curves.items():
        t = ATTACKED[name][1]
        at = "".join(f"{errors[r - 1]:8.3f}" for r in (10, 40, 80))
        print(f"{name:<14} {ranks[-1]:5d} {PARTIES // t:7d}           {at} {sqrt(1 - 1 / t):15.3f}")


def federation() -> tuple[str, Federated]:
    """Return MNIST of which each party has one or two digits; without it, the digits that come with Atoll."""
    name = "MNIST"
    try:
        table = atoll.data.load("mnist")
    except DataMissing as missing:
        print(f"\nMNIST is skipped: {missing}")
        name, table = "digits", atoll.data.load("digits")
    return name, table.split(PARTIES, by="shards", per_client=2, seed=0)


class Sent(NamedTuple):
    """What every party would send in one round: its update, or its whole model."""

    updates: Array
    models: Array


class Watched(NamedTuple):
    """What the server saw, who took part and the sums of updates; and what was to be found, at its start and end."""

    matrix: Array
    sums: Array
    first: Sent
    last: Sent


def watch(data: Federated, select: Select) -> Watched:
    """Train for a while, then watch every round's sum of updates. Training goes on."""
    method, world = atoll.FedAvg(atoll.models.softmax(), batch=50, lr=0.05).bind(summary_of(data)), World.simulated(0)
    schema = method.phases["train"].schema
    state = method.init(world, Population(data.train.sizes))
    matrix = multi_round(select, PARTIES, BEFORE + ROUNDS).matrix

    def sent(me: Array, t: int) -> Sent:
        given = method.client_update(method.broadcast(state), Group(me, data.train, me, world, t))
        updates = flatten(given.vector, schema).astype(np.float64)
        return Sent(updates, np.asarray(state["params"], np.float64) + updates)

    sums, everybody = [], np.arange(PARTIES)
    for t, row in enumerate(matrix):
        me = np.flatnonzero(row)
        updates = sent(me, t).updates
        if t == BEFORE:
            first = sent(everybody, t)
        if t >= BEFORE:
            sums.append(updates.sum(0))
        mean = unflatten(updates.mean(0).astype(np.float32), schema)
        state = method.server_update(state, mean, RoundInfo(t, len(me), len(me), PARTIES, me))
    return Watched(matrix[BEFORE:], np.array(sums), first, sent(everybody, len(matrix)))


def print_trained() -> None:
    name, data = federation()
    end = BEFORE + ROUNDS
    print(
        f"\n{name}, {PARTIES} parties with one or two digits each, {COHORT} in a round, softmax. Error of least squares"
    )
    print(
        f"on {ROUNDS} sums, relative to the length of what a party sends: of vectors that stay the same after {BEFORE}"
    )
    print(f"and {end} rounds; of updates while training goes on; and how many updates are told from all others\n")
    print(f"select          updates {BEFORE:4d}  {end:4d}    models {BEFORE:4d}  {end:4d}   training   recognised")
    for words, (select, _) in ATTACKED.items():
        seen = watch(data, select)
        stay = [leak(seen.matrix, now).mean() for now in (seen.first[0], seen.last[0], seen.first[1], seen.last[1])]
        guess, truth = recover(seen.matrix, seen.sums), seen.last.updates
        error = (np.linalg.norm(guess - truth, axis=1) / np.linalg.norm(truth, axis=1)).mean()
        cells = f"{stay[0]:12.3f} {stay[1]:5.3f} {stay[2]:14.3f} {stay[3]:5.3f} {error:10.3f}"
        print(f"{words:<14} {cells} {recognised(guess, truth):6d} of {PARTIES}")
    lengths = [np.linalg.norm(now.updates) / np.linalg.norm(now.models) for now in (seen.first, seen.last)]
    print(f"\nan update is {lengths[0]:.3f} and {lengths[1]:.3f} of a model's length: so do the two errors differ")


def recognised(guess: Array, truth: Array) -> int:
    """Count the parties whose own vector is, of all, most like the guess, by what differs from the mean."""
    one, other = (
        (rows - rows.mean(0)) / np.linalg.norm(rows - rows.mean(0), axis=1)[:, None] for rows in (guess, truth)
    )
    return int((np.argmax(one @ other.T, axis=1) == np.arange(len(truth))).sum())


def draw(curves: dict[str, tuple[list[int], list[float]]], folder: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    rounds = range(1, ROUNDS + 1)
    for name, (ranks, errors) in curves.items():
        (line,) = left.plot(rounds, errors, label=name)
        left.axhline(sqrt(1 - 1 / ATTACKED[name][1]), color=line.get_color(), linestyle=":", linewidth=0.8)
        right.plot(rounds, ranks, label=name)
    left.set(xlabel="round", ylabel="relative error of the estimate", title="How far off the server is")
    right.set(xlabel="round", ylabel="rank of the participation matrix", title="What the server can tell apart")
    left.legend(loc=(0.03, 0.08))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "multiround.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def print_costs(rounds: int = 2000) -> None:
    print("\n120 parties, 12 in a round, each away with probability p: parties in a round C (theory), fairness gap F;")
    print(f"{rounds} rounds, in which C scatters by up to {6 / sqrt(rounds):.2f} (one standard deviation)\n")
    print("select            T" + "".join(f"        p = {p}        F" for p in (0.1, 0.3, 0.5)))
    selects: dict[str, Select] = {"random": atoll.Count(12), "least served": LeastServed(12)}
    selects |= {f"batches of {size}": Batches(12, size) for size in (3, 4, 6)} | {"groups of 12": Partition(12)}
    for name, select in selects.items():
        size = {"groups of 12": 12}.get(name, getattr(select, "size", 1))
        cells, private = "", 120
        for p in (0.1, 0.3, 0.5):
            found = multi_round(select, 120, rounds, atoll.Flaky(1 - p))
            private = min(private, found.privacy)
            cells += f" {found.cardinality:7.3f} ({theory(120, 12, size, p):6.3f}) {found.fairness_gap:5.3f}"
        print(f"{name:<14} {private:4d}{cells}")


def train() -> None:
    try:
        data = atoll.data.load("mnist").split(120, by="dirichlet", alpha=0.5, seed=0)
    except DataMissing as missing:
        print(f"skipped: {missing}")
        return
    print("\nMNIST on 120 parties (Dirichlet 0.5), 12 in a round, 100 rounds, each party away with p = 0.3\n")
    print("model      select         accuracy   rounds to 85 %   rounds with nobody")
    for words, model in (("softmax", atoll.models.softmax()), ("2NN", atoll.models.mlp())):
        for name, select in (("random", atoll.Count(12)), ("batches of 4", Batches(12, 4)), ("groups", Partition(12))):
            method = atoll.FedAvg(model, epochs=1, batch=10, lr=0.05)
            run = atoll.simulate(atoll.Job(method, select, rounds=100, availability=atoll.Flaky(0.7)), data)
            rounds, values = run.curve("test.accuracy")
            hit = next((r for r, v in zip(rounds, values, strict=True) if v >= 0.85), None)
            empty = sum(fact["what"] == "empty" for fact in run.facts)
            print(f"{words:<10} {name:<13} {values[-1]:9.3f} {hit or 'never':>16} {empty:20d}")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    options.add_argument("--train", action="store_true", help="train on MNIST too")
    chosen = options.parse_args()
    curves = attack()
    print_attack(curves)
    print(f"\npicture: {draw(curves, chosen.out)}")
    print_trained()
    print_costs()
    if chosen.train:
        train()


if __name__ == "__main__":
    main()
