"""Component-wise boosting with shared effects and effects of single sites (Schalk et al. 2024), squared loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from atoll.core.effects import Replies
from atoll.core.method import (
    Contribution,
    DataSummary,
    Evaluation,
    History,
    Method,
    Phase,
    Pick,
    Population,
    RoundInfo,
    Select,
    State,
)
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree
from atoll.core.world import World
from parts.statistics import told

PHASES = ("start", "scores", "errors")


@dataclass(frozen=True)
class Componentwise(Method):
    """Each round the best learner of one feature, shared or the sites' own, takes a step. Every site must answer."""

    steps: int = 200
    nu: float = 0.1
    penalty: float = 1.0
    own_penalty: float = 60.0
    features: int = 0  # the data says how many
    remembers = True

    def bind(self, summary: DataSummary) -> Self:
        (features,) = summary.sample.leaves["x"].shape or ()
        return replace(self, features=features)

    @property
    def phases(self) -> Mapping[str, Phase]:
        j = self.features
        start = Schema((("n", (1,)), ("y", (1,)), ("xx", (j, 2, 2))))
        schemas = (start, Schema((("xr", (j, 2)),)), Schema((("sse", (2, j)),)))
        return {name: Phase(schema, mean=False) for name, schema in zip(PHASES, schemas, strict=True)}

    def init(self, world: World, population: Population) -> State:
        j, missing = self.features, np.ones(len(population.sizes), bool)
        told = {
            "shared": np.zeros((j, 2)),
            "offset": np.zeros(1),
            "theta": np.zeros((j, 2)),
            "m": 0,
            "missing": missing,
        }
        return {**told, "xx": np.zeros((j, 2, 2)), "order": np.full((self.steps, 2), -1), "at": 0, "sum": {}}

    def phase(self, state: State) -> str:
        return PHASES[int(state["at"])]

    def complete(self, state: State) -> bool:
        return bool(self.phase(state) == "scores" and state["m"] and state["missing"].all())

    def broadcast(self, state: State) -> Tree:
        last = state["order"][int(state["m"]) - 1]
        return {"m": int(state["m"]), "won": last, **{n: state[n] for n in ("shared", "offset", "theta", "missing")}}

    def own(self, broadcast: Tree, group: Group) -> Array:
        """Return each site's own coefficients. Who won is known one question after the site has made its fit."""
        blank = np.zeros((self.features, 2))
        own, fit = (group.memory.get(name, blank) for name in ("own", "fit"))
        (learner, local), due = broadcast["won"], group.memory.get("m", -1) == broadcast["m"] - 1
        step = np.zeros_like(own)
        step[:, learner] = self.nu * fit[:, learner]
        return own + step * (due & (local == 1))[:, None, None]

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        own, made, fits = self.own(broadcast, group), [], []
        for k, (x, y) in enumerate(group):
            b, r = basis(x), y - predicted(broadcast, own[k], x)
            xx, xr = np.einsum("jnp,jnq->jpq", b, b), np.einsum("jnp,n->jp", b, r)
            fits.append(solved(xx, xr, self.own_penalty))
            sse = [np.square(r - np.einsum("jnp,jp->jn", b, th)).sum(1) for th in (broadcast["theta"], fits[k])]
            found = {"n": np.full(1, len(y)), "y": np.full(1, y.sum()), "xx": xx, "xr": xr, "sse": np.stack(sse)}
            here = {name: found[name] for name, _ in self.phases[group.phase].schema.leaves}
            made.append({name: leaf * broadcast["missing"][group.me[k]] for name, leaf in here.items()})
        if group.phase != "errors":
            return told(group, made)
        memory = {"own": own, "fit": np.stack(fits), "m": np.full(len(group), broadcast["m"])}
        return told(group, made)._replace(memory=memory)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        before, missing = state.get("sum", {}), state["missing"].copy()
        sums = {name: leaf + before.get(name, 0.0) for name, leaf in tree.items()}
        missing[info.parties] = False
        if missing.any():  # the same question again: those who have answered it send zeros
            return {**state, "sum": sums, "missing": missing}
        state, m = {**state, "sum": {}, "missing": ~missing}, int(state["m"])
        if self.phase(state) == "start":
            return {**state, "xx": sums["xx"], "offset": sums["y"] / sums["n"], "at": 1}
        if self.phase(state) == "scores":
            return {**state, "theta": solved(state["xx"], sums["xr"], self.penalty), "at": 2}
        if m == self.steps:
            return {**state, "at": 1}
        local = int(sums["sse"][1].min() < sums["sse"][0].min() - 1e-9)
        learner = int(sums["sse"][local].argmin())
        shared, order = state["shared"].copy(), state["order"].copy()
        order[m] = learner, local
        shared[learner] += self.nu * state["theta"][learner] * (not local)
        return {**state, "shared": shared, "order": order, "m": m + 1, "at": 1}

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        own = self.own(broadcast, group)
        errors = [np.square(y - predicted(broadcast, own[k], x)).sum() for k, (x, y) in enumerate(group)]
        return {"n": group.size.astype(np.float64), "squares": np.array(errors)}

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation({"n": (), "squares": ()}, _mse, {"mse": "low"}, lambda sums: sums["squares"] / sums["n"])

    def parameters(self, state: State) -> Tree:
        return {"shared": state["shared"], "offset": state["offset"]}


def _mse(sums: Mapping[str, Array]) -> dict[str, float]:
    return {"mse": float(sums["squares"] / max(float(sums["n"]), 1.0))}


def basis(x: Array) -> Array:
    """Return (features, rows, 2): an intercept and a slope for every feature."""
    return np.stack([np.ones(x.shape), x], -1).transpose(1, 0, 2)


def solved(xx: Array, xr: Array, penalty: float) -> Array:
    return np.linalg.solve(xx + penalty * np.eye(2), xr[..., None])[..., 0]


def predicted(broadcast: Tree, own: Array, x: Array) -> Array:
    return broadcast["offset"][0] + np.einsum("jnp,jp->n", basis(x), broadcast["shared"] + own)


@dataclass(frozen=True)
class Rest(Select):
    """Ask everybody; then those who have not answered, until all have; then everybody again."""

    def expected(self, parties: int) -> int:
        return parties

    def start(self, population: Population) -> Tree:
        return {"missing": np.ones(len(population.sizes), bool)}

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        missing = np.flatnonzero(memory["missing"])
        return Pick(missing if population.online is None else np.intersect1d(missing, population.online))

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        missing = memory["missing"].copy()
        missing[replies.parties] = False
        return {"missing": missing if missing.any() else ~missing}
