"""Active federated learning (Goetz et al. 2019): parties report what they are worth, a select learns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.core.effects import Replies
from atoll.core.method import Contribution, History, Phase, Pick, Population, RoundInfo, Select, State
from atoll.core.party import Group
from atoll.core.tree import Schema, Tree
from atoll.core.world import World
from atoll.methods.trained import Trained
from atoll.models import Fit, Model


@dataclass(frozen=True)
class Valued(Trained):
    """FedAvg whose parties report the summed loss of the model that they were sent, divided by √n."""

    model: Model
    epochs: int = 1
    batch: int | None = 10
    lr: float = 0.1
    reports = Schema((("value", ()),))

    @property
    def phases(self) -> Mapping[str, Phase]:
        return self.trained("delta")

    def init(self, world: World, population: Population) -> State:
        return {"params": self.model.init(world.seed)}

    def broadcast(self, state: State) -> Tree:
        return state

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w = broadcast["params"]
        value = self.model.evaluate(w, group)["loss"] / np.sqrt(group.size)
        delta = self.model.fit(w, group, Fit(self.epochs, self.batch), self.lr) - w
        return Contribution({"delta": delta}, group.size, reports={"value": value})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"params": state["params"] + tree["delta"]}


@dataclass(frozen=True)
class Active(Select):
    """Draw parties by exp(a2·value), without the a1·K of the lowest value; a share a3 of the cohort is uniform."""

    number: int = 20
    a1: float = 0.75
    a2: float = 0.01
    a3: float = 0.1

    def expected(self, parties: int) -> int:
        return min(self.number, parties)

    def start(self, population: Population) -> Tree:
        return {"value": np.full(len(population.sizes), -1.0)}  # of a party that has not reported

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        value = memory["value"].copy()
        value[replies.parties] = replies.each.get("report/value", value[replies.parties])
        return {"value": value}

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick:
        who = np.arange(len(population.sizes)) if population.online is None else population.online
        root, known = np.sqrt(population.sizes), memory["value"] >= 0
        # Who has not reported is taken for a party of the mean loss of those who have.
        usual = (memory["value"] / root)[known].mean() if known.any() else 1.0
        v = np.where(known, memory["value"], usual * root)[who]
        odds = np.exp(self.a2 * (v - v.max(initial=0.0)))
        odds[np.argsort(v, kind="stable")[: int(self.a1 * len(who))]] = 0.0
        m, draw = min(self.number, len(who)), world.public_rng("active", t)
        first = min(m - int(self.a3 * m), int(np.count_nonzero(odds)))
        best = draw.choice(who, first, replace=False, p=odds / odds.sum()) if first else who[:0]
        rest = draw.choice(np.setdiff1d(who, best), m - first, replace=False) if m > first else who[:0]
        return Pick(np.sort(np.concatenate([best, rest])))
