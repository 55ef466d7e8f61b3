"""Cures of client drift: SCAFFOLD, FedDyn, FedLin, FedNova."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.core.method import Contribution, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree
from atoll.core.world import World
from atoll.methods.trained import Trained
from atoll.models import Fit, Model


def steps(how: Fit, size: Array) -> Array:
    """Count the local steps of parties with so many samples."""
    return np.full(len(size), how.epochs) if how.batch is None else how.epochs * -(-size // how.batch)


@dataclass(frozen=True)
class Scaffold(Trained):
    """FedAvg with control variates (Karimireddy et al. 2020, option II)."""

    model: Model
    epochs: int = 1
    batch: int | None = 10
    lr: float = 0.1
    server_lr: float = 1.0
    remembers = True

    @property
    def phases(self) -> Mapping[str, Phase]:
        d = self.model.size
        return {"train": Phase(Schema((("dy", (d,)), ("dc", (d,)))), dtype=self.model.dtype)}

    def init(self, world: World, population: Population) -> State:
        w = self.model.init(world.seed)
        return {"params": w, "c": np.zeros_like(w)}

    def broadcast(self, state: State) -> Tree:
        return state

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w, c, how = broadcast["params"], broadcast["c"], Fit(self.epochs, self.batch)
        mine = group.memory.get("c", np.zeros_like(w))
        y = self.model.fit(w, group, how, self.lr, c - mine)
        after = (mine - c + (w - y) / (steps(how, group.size) * self.lr)[:, None]).astype(w.dtype)
        return Contribution({"dy": y - w, "dc": after - mine}, group.size, {"c": after})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        w = state["params"]
        share = w.dtype.type(info.answered / info.population)
        return {"params": w + w.dtype.type(self.server_lr) * tree["dy"], "c": state["c"] + share * tree["dc"]}


@dataclass(frozen=True)
class FedDyn(Trained):
    """Local objectives with a linear term that each party remembers (Acar et al. 2021)."""

    model: Model
    epochs: int = 1
    batch: int | None = 10
    lr: float = 0.1
    alpha: float = 0.1
    remembers = True

    @property
    def phases(self) -> Mapping[str, Phase]:
        return self.trained("delta")

    def init(self, world: World, population: Population) -> State:
        w = self.model.init(world.seed)
        return {"params": w, "h": np.zeros_like(w)}

    def broadcast(self, state: State) -> Tree:
        return {"params": state["params"]}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w = broadcast["params"]
        mine = group.memory.get("dual", np.zeros_like(w))
        how = Fit(self.epochs, self.batch, prox=self.alpha)
        delta = self.model.fit(w, group, how, self.lr, -mine) - w
        return Contribution({"delta": delta}, group.size, {"dual": mine - w.dtype.type(self.alpha) * delta})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        a = state["h"].dtype.type(self.alpha)
        h = state["h"] - a * a.dtype.type(info.answered / info.population) * tree["delta"]
        return {"params": state["params"] + tree["delta"] - h / a, "h": h}


@dataclass(frozen=True)
class FedLin(Trained):
    """The mean gradient first, then local steps that it corrects, by the same parties (Mitra et al. 2021)."""

    model: Model
    epochs: int = 1
    batch: int | None = None
    lr: float = 0.1
    cycle = ("gradient", "train")

    @property
    def phases(self) -> Mapping[str, Phase]:
        (train,) = self.trained("delta").values()
        return {"gradient": train, "train": train._replace(same_cohort=True)}

    def init(self, world: World, population: Population) -> State:
        w = self.model.init(world.seed)
        return {"params": w, "gradient": np.zeros_like(w), "next": 0}

    def phase(self, state: State) -> str:
        return ("gradient", "train")[int(state["next"])]

    def complete(self, state: State) -> bool:
        return self.phase(state) == "gradient"

    def broadcast(self, state: State) -> Tree:
        return {"params": state["params"], "gradient": state["gradient"]}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w = broadcast["params"]
        mine = self.model.grad(w, group)
        if group.phase == "gradient":
            return Contribution({"delta": mine}, group.size)
        y = self.model.fit(w, group, Fit(self.epochs, self.batch), self.lr, broadcast["gradient"] - mine)
        return Contribution({"delta": y - w}, group.size)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        if self.phase(state) == "gradient":
            return {**state, "gradient": tree["delta"], "next": 1}
        return {**state, "params": state["params"] + tree["delta"], "next": 0}


@dataclass(frozen=True)
class FedNova(Trained):
    """FedAvg of changes per local step (Wang et al. 2020); party k trains for epochs[k % len(epochs)] epochs."""

    model: Model
    epochs: tuple[int, ...] = (1,)
    batch: int | None = 10
    lr: float = 0.1

    @property
    def phases(self) -> Mapping[str, Phase]:
        return {"train": Phase(Schema((("d", (self.model.size,)), ("tau", (1,)))), dtype=self.model.dtype)}

    def init(self, world: World, population: Population) -> State:
        return {"params": self.model.init(world.seed)}

    def broadcast(self, state: State) -> Tree:
        return state

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w, y, tau = broadcast["params"], [], []
        for k, me in enumerate(group.me):
            how, alone = Fit(self.epochs[me % len(self.epochs)], self.batch), group.only(k)
            y.append(self.model.fit(w, alone, how, self.lr))
            tau.append(steps(how, alone.size))
        taken = np.array(tau, w.dtype)
        return Contribution({"d": (np.concatenate(y) - w) / taken, "tau": taken}, group.size)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"params": state["params"] + tree["tau"] * tree["d"]}
