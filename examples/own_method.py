"""A method from scratch: linear regression by sufficient statistics, exact after one round.

Parties send XᵀX and Xᵀy, the server adds them up and solves the normal equations (Gauss 1809): the result is the
regression on all data in one place, although no row leaves its party. The whole method is the class below. It uses no
framework, and the same channel, runtime and run folder as FedAvg.

    python examples/own_method.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import atoll
from atoll.core.method import Contribution, Method, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree
from atoll.core.world import World
from atoll.metrics import R2


@dataclass(frozen=True)
class LeastSquares(Method):
    """Add up XᵀX and Xᵀy over the parties and solve. Needs: a sum. Reveals: both statistics of each party."""

    features: int

    @property
    def phases(self) -> Mapping[str, Phase]:
        d = self.features + 1  # the last weight is the intercept
        return {"train": Phase(Schema((("xx", (d, d)), ("xy", (d,)))), mean=False)}  # server_update gets the sum

    def init(self, world: World, population: Population) -> State:
        return {"params": np.zeros(self.features + 1)}

    def broadcast(self, state: State) -> Tree:
        return {"params": state["params"]}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        rows = [(with_one(x), y) for x, y in group]
        statistics = {"xx": np.stack([x.T @ x for x, _ in rows]), "xy": np.stack([x.T @ y for x, y in rows])}
        return Contribution(statistics, group.size)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"params": np.linalg.solve(tree["xx"], tree["xy"])}

    def scores(self, broadcast: Tree, group: Group) -> Array:
        return np.concatenate([self.predict(broadcast, x) for x, _ in group])

    def predict(self, state: State, x: Array) -> Array:
        return np.asarray(with_one(x) @ state["params"])


def with_one(x: Array) -> Array:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(np.float64)


def main() -> None:
    data = atoll.data.load("diabetes").split(10, by="power", seed=0)
    job = atoll.Job(
        LeastSquares(10), atoll.All(), atoll.Channel([], atoll.Sum()), rounds=1, metrics=[R2()], name="least-squares"
    )
    run = atoll.simulate(job, data)

    pooled, *_ = np.linalg.lstsq(with_one(data.train.x), data.train.y.astype(np.float64), rcond=None)
    print("feature      federated      pooled")
    for name, mine, theirs in zip((*data.features, "one"), run.vector, pooled, strict=True):
        print(f"{name:<8} {mine:13.6f} {theirs:11.6f}")
    print(f"largest difference {np.abs(run.vector - pooled).max():.1e}")
    print(f"test r2 {run.curve('test.r2')[1][-1]:.3f} after one round of {len(data)} parties")


if __name__ == "__main__":
    main()
