"""Gradient-boosted trees on histograms, exactly as if all samples lay in one place: a phase a level of a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from atoll.core.method import Contribution, DataSummary, Method, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.question import Layout, Leaf
from atoll.core.tree import Array, Schema, Tree
from atoll.core.world import World
from parts import scores

GRID = 2.0**20  # what is added up are whole multiples of 1/GRID, so that no sum depends on its order


@dataclass(frozen=True)
class Boost(Method):
    """Boost trees for two classes; a round grows one tree. Parties remember the scores of their samples."""

    trees: int = 20
    depth: int = 3
    lr: float = 0.3
    penalty: float = 1.0
    bins: int = 16
    features: int = 0  # the data says how many
    remembers = True
    evaluation = scores.TWO_CLASSES

    def bind(self, summary: DataSummary) -> Self:
        (features,) = summary.sample.leaves["x"].shape or ()
        return replace(self, features=features)

    @property
    def phases(self) -> Mapping[str, Phase]:
        edges = Layout({"edges": Leaf("float64", (self.features, self.bins - 1))})
        found = {"moments": Phase(Schema((("n", (1,)), ("x", (self.features,)), ("xx", (self.features,)))), mean=False)}
        for level in range(self.depth):
            shape = (2**level, self.features, self.bins, 2)
            found[f"level{level}"] = Phase(Schema((("gh", shape),)), mean=False, constant=edges)
        return found

    def init(self, world: World, population: Population) -> State:
        inner = (self.trees, 2**self.depth - 1)
        forest = {"feature": np.zeros(inner, np.int64), "cut": np.full(inner, np.float64(np.finfo("f8").max))}
        forest["leaf"] = np.zeros((self.trees, 2**self.depth))
        return {"forest": forest, "edges": np.zeros((self.features, 0)), "tree": 0, "level": -1}

    def phase(self, state: State) -> str:
        return "moments" if state["level"] < 0 else f"level{int(state['level'])}"

    def complete(self, state: State) -> bool:
        return bool(state["level"] == 0 and state["tree"] > 0)

    def broadcast(self, state: State) -> Tree:
        return {"forest": state["forest"], "tree": int(state["tree"])}

    def constant(self, state: State) -> Tree:
        return {"edges": state["edges"]} if state["edges"].size else {}

    def prepare(self, constant: Tree, group: Group) -> Sequence[Any]:
        columns = constant["edges"]
        return [np.stack([np.searchsorted(e, c) for e, c in zip(columns, x.T, strict=True)], 1) for x, _ in group]

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        if group.phase == "moments":
            made = [[np.full(1, len(x)), exact(x).sum(0), exact(np.square(x, dtype="f8")).sum(0)] for x, _ in group]
            n, x, xx = map(np.stack, zip(*made, strict=True))
            return Contribution({"n": n, "x": x, "xx": xx}, group.size)
        forest, t, level = broadcast["forest"], broadcast["tree"], int(group.phase.removeprefix("level"))
        before, grown = group.memory.get("score", 0.0), group.memory.get("trees", 0)
        score, rows = np.empty(len(group), object), []
        for k, (x, y) in enumerate(group):
            f = score[k] = before[k] + self.scores_of(forest, x, int(grown[k]), t)
            p = 1 / (1 + np.exp(-f))
            node = walk(forest, t, x, level) if level else np.zeros(len(x), np.int64)
            at = (node[:, None] * self.features + np.arange(self.features)) * self.bins + group.cache[k]
            size = 2**level * self.features * self.bins
            gh = [np.bincount(at.ravel(), np.repeat(exact(v), self.features), size) for v in (p - y, p * (1 - p))]
            rows.append(np.stack(gh, 1).reshape(2**level, self.features, self.bins, 2))
        return Contribution({"gh": np.stack(rows)}, group.size, {"score": score, "trees": np.full(len(group), t)})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        if self.phase(state) == "moments":
            mean = tree["x"] / GRID / tree["n"]
            spread = np.sqrt(np.maximum(tree["xx"] / GRID / tree["n"] - mean**2, 0))
            z = [NormalDist().inv_cdf(k / self.bins) for k in range(1, self.bins)]
            return {**state, "edges": mean[:, None] + spread[:, None] * np.array(z), "level": 0}
        t, level, nodes = int(state["tree"]), int(state["level"]), np.arange(2 ** int(state["level"]))
        left = (tree["gh"] / GRID).cumsum(2)
        whole = left[:, :1, -1:]
        left = left[:, :, :-1]
        gain = self.gain(left) + self.gain(whole - left) - self.gain(whole)
        best = gain.reshape(len(nodes), -1).argmax(1)
        feature, cut = np.unravel_index(best, gain.shape[1:])
        some = gain[nodes, feature, cut] > 1e-9
        forest = {name: leaf.copy() for name, leaf in state["forest"].items()}
        here = slice(len(nodes) - 1, 2 * len(nodes) - 1)
        forest["feature"][t, here] = feature
        forest["cut"][t, here] = np.where(some, state["edges"][feature, cut], np.finfo("f8").max)
        if level + 1 < self.depth:
            return {**state, "forest": forest, "level": level + 1}
        low = np.where(some[:, None], left[nodes, feature, cut], whole[:, 0, 0])
        sums = np.stack([low, whole[:, 0, 0] - low], 1).reshape(-1, 2)
        forest["leaf"][t] = -self.lr * sums[:, 0] / (sums[:, 1] + self.penalty)
        return {**state, "forest": forest, "tree": t + 1, "level": 0}

    def gain(self, sums: Array) -> Array:
        return sums[..., 0] ** 2 / (sums[..., 1] + self.penalty)

    def scores_of(self, forest: Tree, x: Array, first: int, last: int) -> Array:
        """Add up what trees from the first to (not with) the last say of rows."""
        return sum((forest["leaf"][t][walk(forest, t, x, self.depth)] for t in range(first, last)), np.zeros(len(x)))

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        return scores.sums(group, [self.scores_of(broadcast["forest"], x, 0, broadcast["tree"]) for x, _ in group])

    def predict(self, state: State, x: Array) -> Array:
        return self.scores_of(state["forest"], x, 0, int(state["tree"]))

    def parameters(self, state: State) -> Tree:
        return state["forest"]


def exact(numbers: Array) -> Array:
    """Write numbers as whole multiples of the grid."""
    return np.rint(numbers * GRID, dtype=np.float64)


def walk(forest: Tree, t: int, x: Array, depth: int) -> Array:
    """Say in which node of a depth each row is."""
    node, rows = np.zeros(len(x), np.int64), np.arange(len(x))
    for _ in range(depth):
        node = 2 * node + 1 + (x[rows, forest["feature"][t][node]] > forest["cut"][t][node])
    return node - (2**depth - 1)
