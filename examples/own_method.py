"""A method from scratch: linear regression by sufficient statistics, exact after one round.

Parties send XᵀX and Xᵀy, the server adds them up and solves the normal equations (Gauss 1809): what comes out is the
regression on all data in one place, although no row has left its party. The whole method is the class below; it has no
network, no framework, and goes through the same channel, runtime and run folder as FedAvg.

    python examples/own_method.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import atoll
from atoll.core.method import Contribution, State
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree


@dataclass(frozen=True)
class LeastSquares:
    """Add up XᵀX and Xᵀy over the parties and solve. Needs: a sum. Reveals: both statistics of each party."""

    features: int
    mean = False  # merge wants the sum of contributions, not their mean
    width = 1  # parties that one call of task answers for

    @property
    def schema(self) -> Schema:
        d = self.features + 1  # the last weight is the intercept
        return Schema((("xx", (d, d)), ("xy", (d,))))

    def init(self, seed: int) -> State:
        return {"params": np.zeros(self.features + 1)}

    def share(self, state: State) -> Tree:
        return {"params": state["params"]}

    def task(self, share: Tree, group: Group) -> Contribution:
        rows = [(with_one(x), y) for x, y in group]
        statistics = {"xx": np.stack([x.T @ x for x, _ in rows]), "xy": np.stack([x.T @ y for x, y in rows])}
        return Contribution(statistics, group.size)

    def merge(self, state: State, tree: Tree) -> State:
        return {"params": np.linalg.solve(tree["xx"], tree["xy"])}

    def evaluate(self, share: Tree, group: Group) -> Tree:
        rows = [(y, (with_one(x) @ share["params"] - y) ** 2) for x, y in group]
        sums = [(len(y), e.sum() / 2, e.sum(), y.sum(), (y**2).sum()) for y, e in rows]
        return dict(zip(("n", "loss", "squares", "y", "yy"), np.array(sums, np.float64).T, strict=True))


def with_one(x: Array) -> Array:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(np.float64)


def main() -> None:
    data = atoll.data.load("diabetes").split(10, by="power", seed=0)
    job = atoll.Job(LeastSquares(10), atoll.All(), atoll.Channel([], atoll.Sum()), rounds=1, name="least-squares")
    run = atoll.simulate(job, data)

    pooled, *_ = np.linalg.lstsq(with_one(data.train.x), data.train.y.astype(np.float64), rcond=None)
    print("feature      federated      pooled")
    for name, mine, theirs in zip((*data.features, "one"), run.vector, pooled, strict=True):
        print(f"{name:<8} {mine:13.6f} {theirs:11.6f}")
    print(f"largest difference {np.abs(run.vector - pooled).max():.1e}")
    print(f"test r2 {run.curve('test.r2')[1][-1]:.3f} after one round of {len(data)} parties")


if __name__ == "__main__":
    main()
