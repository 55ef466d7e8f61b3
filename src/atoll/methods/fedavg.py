"""Federated averaging (McMahan et al. 2017) and what differs from it by a setting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from atoll.core.method import Contribution, State
from atoll.core.party import Group
from atoll.core.tree import Schema, Tree
from atoll.methods.schedule import Schedule, check_rate, rate
from atoll.methods.server import Server
from atoll.models.model import Fit, Model
from atoll.models.optimiser import Optimiser, optimiser
from atoll.models.private import ExampleDP


@dataclass(frozen=True)
class FedAvg:
    """Train on every party for some epochs, average the changes (weights n_k over the parties that answered)."""

    model: Model
    epochs: int = 1
    batch: int | None = 10
    lr: float | Schedule = 0.1
    optimiser: Optimiser = Optimiser()
    server: Server = Server()
    prox: float = 0.0
    private: ExampleDP | None = None
    mean = True

    def __post_init__(self) -> None:
        check_rate(self.lr)
        if self.epochs < 1:
            raise ValueError(f"epochs={self.epochs}: a party trains for at least one epoch")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch={self.batch}: a batch has at least one sample (leave it out for all of them)")
        if self.prox < 0:
            raise ValueError(f"prox={self.prox}: the pull towards the shared model is not negative")
        self.model.engine.check(self.optimiser)

    @property
    def schema(self) -> Schema:
        return Schema((("delta", (self.model.size,)),))

    @property
    def width(self) -> int:
        return self.model.width

    def init(self, seed: int) -> State:
        w = self.model.init(seed)
        return {"params": w, "server": self.server.start(w), "t": 0}

    def share(self, state: State) -> Tree:
        return {"params": state["params"], "lr": rate(self.lr, int(state["t"]))}

    def task(self, share: Tree, group: Group) -> Contribution:
        w = share["params"]
        how = Fit(self.epochs, self.batch, self.optimiser, self.prox, self.private)
        return Contribution({"delta": self.model.fit(w, group, how, share["lr"]) - w}, group.size)

    def merge(self, state: State, tree: Tree) -> State:
        w, memory = self.server.step(state["params"], tree["delta"], state.get("server", {}))
        return {"params": w, "server": memory, "t": int(state["t"]) + 1}

    def evaluate(self, share: Tree, group: Group) -> Tree:
        return self.model.evaluate(share["params"], group)


def FedProx(model: Model, mu: float = 0.01, **settings: Any) -> FedAvg:  # noqa: N802 - a method's name
    """FedAvg whose parties are pulled towards the shared model: f_k(w) + mu/2·‖w − w_t‖² (Li et al. 2020)."""
    return FedAvg(model, prox=mu, **settings)


def _with(server: Server, model: Model, settings: dict[str, Any]) -> FedAvg:
    return replace(FedAvg(model, **settings), server=server)


def fedavgm(model: Model, *, server_lr: float = 1.0, momentum: float = 0.9, **settings: Any) -> FedAvg:
    """FedAvg with momentum on the server."""
    return _with(Server(optimiser("sgd", momentum=momentum), server_lr), model, settings)


def fedadam(
    model: Model, *, server_lr: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, **settings: Any
) -> FedAvg:
    """FedAvg with Adam on the server (Reddi et al. 2021; eps is their τ)."""
    return _with(Server(optimiser("adam", b1=b1, b2=b2, eps=eps), server_lr), model, settings)


def fedyogi(
    model: Model, *, server_lr: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, **settings: Any
) -> FedAvg:
    """FedAvg with Yogi on the server (Reddi et al. 2021; eps is their τ)."""
    return _with(Server(optimiser("yogi", b1=b1, b2=b2, eps=eps), server_lr), model, settings)


def fedadagrad(model: Model, *, server_lr: float = 0.1, eps: float = 1e-3, **settings: Any) -> FedAvg:
    """FedAvg with Adagrad on the server (Reddi et al. 2021; eps is their τ)."""
    return _with(Server(optimiser("adagrad", eps=eps, initial_accumulator_value=0.0), server_lr), model, settings)
