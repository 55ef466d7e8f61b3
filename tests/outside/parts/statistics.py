"""Methods whose vector is a statistic: a regression by Newton's method, k-means, a query of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from atoll.core.method import (
    Contribution,
    DataSummary,
    Evaluation,
    Method,
    Phase,
    Population,
    RoundInfo,
    State,
)
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree
from atoll.core.world import World
from parts import scores


def told(group: Group, made: Sequence[Mapping[str, Array]]) -> Contribution:
    """Stack what each party made."""
    return Contribution({name: np.stack([one[name] for one in made]) for name in made[0]}, group.size)


def with_one(x: Array) -> Array:
    return np.column_stack([x.astype(np.float64), np.ones(len(x))])


@dataclass(frozen=True)
class Logit(Method):
    """Logistic regression by Newton's method: the sums of XᵀWX and XᵀWz are all it takes."""

    ridge: float = 1.0
    features: int = 0  # the data says how many
    evaluation = scores.TWO_CLASSES

    def bind(self, summary: DataSummary) -> Self:
        (features,) = summary.sample.leaves["x"].shape or ()
        return replace(self, features=features)

    @property
    def phases(self) -> Mapping[str, Phase]:
        d = self.features + 1
        return {"newton": Phase(Schema((("xwx", (d, d)), ("xwz", (d,)))), mean=False)}

    def init(self, world: World, population: Population) -> State:
        return {"params": np.zeros(self.features + 1)}

    def broadcast(self, state: State) -> Tree:
        return state

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        return told(group, [newton(with_one(x), y, broadcast["params"]) for x, y in group])

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"params": np.linalg.solve(tree["xwx"] + self.ridge * np.eye(self.features + 1), tree["xwz"])}

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        return scores.sums(group, [with_one(x) @ broadcast["params"] for x, _ in group])

    def predict(self, state: State, x: Array) -> Array:
        return with_one(x) @ state["params"]


def newton(x: Array, y: Array, b: Array) -> Mapping[str, Array]:
    """Return XᵀWX and XᵀWz at b."""
    p = 1 / (1 + np.exp(-(x @ b)))
    w = p * (1 - p)
    return {"xwx": (x * w[:, None]).T @ x, "xwz": x.T @ (w * (x @ b) + y - p)}


@dataclass(frozen=True)
class KMeans(Method):
    """Lloyd's algorithm: parties sum up the samples nearest to each centre."""

    clusters: int = 10
    high: float = 1.0  # centres start between 0 and this
    features: int = 0
    group_size = 20

    def bind(self, summary: DataSummary) -> Self:
        return replace(self, features=int(np.prod(summary.sample.leaves["x"].shape or ())))

    @property
    def phases(self) -> Mapping[str, Phase]:
        return {"lloyd": Phase(Schema((("n", (self.clusters,)), ("x", (self.clusters, self.features)))), mean=False)}

    def init(self, world: World, population: Population) -> State:
        drawn = world.public_rng("centres").uniform(0, self.high, (self.clusters, self.features))
        return {"params": drawn}

    def broadcast(self, state: State) -> Tree:
        return state

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        made = []
        for x, _ in group:
            rows = x.reshape(len(x), -1).astype(np.float64)
            one = np.eye(self.clusters)[distances(rows, broadcast["params"]).argmin(1)]
            made.append({"n": one.sum(0), "x": one.T @ rows})
        return told(group, made)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        n = tree["n"][:, None]
        return {"params": np.where(n > 0, tree["x"] / np.maximum(n, 1), state["params"])}

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        rows = [x.reshape(len(x), -1).astype(np.float64) for x, _ in group]
        inertia = [distances(x, broadcast["params"]).min(1).sum() for x in rows]
        return {"n": group.size.astype(np.float64), "inertia": np.array(inertia)}

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation({"n": (), "inertia": ()}, _inertia, {"inertia": "low"}, lambda s: s["inertia"] / s["n"])


def distances(x: Array, centres: Array) -> Array:
    """Return the squared distance of each row to each centre."""
    return np.square(x[:, None] - centres).sum(2)


def _inertia(sums: Mapping[str, Array]) -> dict[str, float]:
    return {"inertia": float(sums["inertia"] / max(float(sums["n"]), 1.0))}


@dataclass(frozen=True)
class Query(Method):
    """Count, mean, variance, labels, and quantiles by bisection, one bit a round."""

    quantiles: tuple[float, ...] = (0.25, 0.5, 0.75)
    low: float = 0.0
    high: float = 1.0
    features: int = 0
    classes: int = 0
    group_size = 50

    def bind(self, summary: DataSummary) -> Self:
        return replace(self, features=int(np.prod(summary.sample.leaves["x"].shape or ())), classes=summary.classes)

    @property
    def phases(self) -> Mapping[str, Phase]:
        j = (self.features,)
        leaves = (("n", (1,)), ("x", j), ("xx", j), ("labels", (self.classes,)), ("below", (len(self.quantiles), *j)))
        return {"count": Phase(Schema(leaves), mean=False)}

    def init(self, world: World, population: Population) -> State:
        q = np.zeros((len(self.quantiles), self.features))
        blank = np.zeros(self.features)
        table = {"n": np.zeros(1), "mean": blank, "variance": blank, "labels": np.zeros(self.classes)}
        return {"low": q + self.low, "high": q + self.high, "table": table}

    def broadcast(self, state: State) -> Tree:
        return {"cut": (state["low"] + state["high"]) / 2}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        made = []
        for each, y in group:
            x = each.reshape(len(each), -1).astype(np.float64)
            counts = {"n": np.full(1, float(len(x))), "labels": np.bincount(y, minlength=self.classes)}
            below = (x[:, None] <= broadcast["cut"]).sum(0)
            made.append({**counts, "x": x.sum(0), "xx": np.square(x).sum(0), "below": below})
        return told(group, made)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        n, cut = tree["n"], self.broadcast(state)["cut"]
        reached = tree["below"] >= np.array(self.quantiles)[:, None] * n
        mean = tree["x"] / n
        table = {"n": n, "mean": mean, "variance": tree["xx"] / n - mean**2, "labels": tree["labels"]}
        low, high = np.where(reached, state["low"], cut), np.where(reached, cut, state["high"])
        return {"low": low, "high": high, "table": table}

    def parameters(self, state: State) -> Tree:
        return {**state["table"], "quantiles": state["high"]}
