"""Federated SGD: one full-batch step a round, exchanged as gradients or as weights. The two are one algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atoll.core.method import Contribution, State
from atoll.core.party import Group
from atoll.core.tree import Schema, Tree
from atoll.methods.schedule import Schedule, check_rate, rate
from atoll.models.model import Fit, Model
from atoll.models.private import ExampleDP


@dataclass(frozen=True)
class FedSGD:
    """Average the parties' full gradients and take a step, or let each take it and average the weights."""

    model: Model
    lr: float | Schedule = 0.1
    by: Literal["gradients", "weights"] = "gradients"
    private: ExampleDP | None = None
    mean = True

    def __post_init__(self) -> None:
        check_rate(self.lr)
        if self.by not in ("gradients", "weights"):
            raise ValueError(f"by='{self.by}': FedSGD exchanges 'gradients' or 'weights'")

    @property
    def schema(self) -> Schema:
        return Schema(((self.by, (self.model.size,)),))

    @property
    def width(self) -> int:
        return self.model.width

    def init(self, seed: int) -> State:
        return {"params": self.model.init(seed), "t": 0}

    def share(self, state: State) -> Tree:
        return {"params": state["params"], "lr": rate(self.lr, int(state["t"]))}

    def task(self, share: Tree, group: Group) -> Contribution:
        w, how = share["params"], Fit(private=self.private)
        if self.by == "weights":
            return Contribution({"weights": self.model.fit(w, group, how, share["lr"])}, group.size)
        # A step of size 1 goes from w to w − g; what it rounds off is far below the noise.
        g = self.model.grad(w, group) if self.private is None else w - self.model.fit(w, group, how, 1.0)
        return Contribution({"gradients": g}, group.size)

    def merge(self, state: State, tree: Tree) -> State:
        t = int(state["t"])
        if self.by == "weights":
            return {"params": tree["weights"], "t": t + 1}
        w = state["params"]
        return {"params": w - w.dtype.type(rate(self.lr, t)) * tree["gradients"], "t": t + 1}

    def evaluate(self, share: Tree, group: Group) -> Tree:
        return self.model.evaluate(share["params"], group)
