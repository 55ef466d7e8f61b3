"""Personal models: Ditto has one beside the shared model, FedPer has a head of its own on a shared body."""

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


def evaluated(model: Model, ws: Array, group: Group) -> Mapping[str, Array]:
    """Evaluate each party's own parameters on its own samples."""
    made = [model.evaluate(w, group.only(k)) for k, w in enumerate(ws)]
    return {name: np.concatenate([one[name] for one in made]) for name in made[0]}


@dataclass(frozen=True)
class Ditto(Trained):
    """FedAvg, and at each party a model of its own that is pulled to the shared one (Li et al. 2021)."""

    model: Model
    epochs: int = 1
    batch: int | None = 10
    lr: float = 0.1
    pull: float = 0.1
    remembers = True

    @property
    def phases(self) -> Mapping[str, Phase]:
        return self.trained("delta")

    def init(self, world: World, population: Population) -> State:
        return {"params": self.model.init(world.seed)}

    def broadcast(self, state: State) -> Tree:
        return state

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w, how = broadcast["params"], Fit(self.epochs, self.batch, prox=self.pull)
        delta = self.model.fit(w, group, Fit(self.epochs, self.batch), self.lr) - w
        # `fit` pulls to where it starts; the tilt moves that centre to w.
        after = [
            self.model.fit(v, group.only(k), how, self.lr, w.dtype.type(self.pull) * (v - w))
            for k, v in enumerate(group.memory.get("params", w))
        ]
        return Contribution({"delta": delta}, group.size, {"params": np.concatenate(after)})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"params": state["params"] + tree["delta"]}

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        return evaluated(self.model, group.memory.get("params", broadcast["params"]), group)


@dataclass(frozen=True)
class FedPer(Trained):
    """FedAvg of all parameters but those named `head`…, which stay at the party (Arivazhagan et al. 2019)."""

    model: Model
    head: str
    epochs: int = 1
    batch: int | None = 10
    lr: float = 0.1
    remembers = True

    @property
    def own(self) -> Array:
        """Say of each parameter whether it stays at the party."""
        return np.concatenate(
            [np.full(b - a, name.startswith(self.head)) for name, a, b, _ in self.model.schema.slots()]
        )

    @property
    def phases(self) -> Mapping[str, Phase]:
        return {"train": Phase(Schema((("body", (int((~self.own).sum()),)),)), dtype=self.model.dtype)}

    def init(self, world: World, population: Population) -> State:
        return {"params": self.model.init(world.seed)}

    def broadcast(self, state: State) -> Tree:
        return state

    def whole(self, w: Array, group: Group) -> Array:
        """Put each party's own head on the shared body."""
        ws = np.repeat(w[None], len(group), 0)
        ws[:, self.own] = group.memory.get("head", w[self.own])
        return ws

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        ws, how = self.whole(broadcast["params"], group), Fit(self.epochs, self.batch)
        after = np.concatenate([self.model.fit(w, group.only(k), how, self.lr) for k, w in enumerate(ws)])
        return Contribution({"body": (after - ws)[:, ~self.own]}, group.size, {"head": after[:, self.own]})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        w = state["params"].copy()
        w[~self.own] += tree["body"]
        return {"params": w}

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        return evaluated(self.model, self.whole(broadcast["params"], group), group)
