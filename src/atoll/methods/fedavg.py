"""Federated averaging (McMahan et al. 2017) and what differs from it by a setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from atoll.core.method import Contribution, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Tree
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.methods.schedule import Schedule, check_rate, rate
from atoll.methods.server import ServerOptimiser
from atoll.methods.trained import Alone, Trained, check_model
from atoll.models.batches import poisson
from atoll.models.example_dp import ExampleDP
from atoll.models.model import Fit, Model
from atoll.models.optimiser import Optimiser, optimiser


@dataclass(frozen=True)
class FedAvg(Trained):
    """Train on every party for some epochs and add the mean of the changes to the model (McMahan et al. 2017).

    With Weigh(), the default, the mean is weighted by the number of examples of the parties that answered.

    Needs: a mean, Weigh() or Average().
    Reveals: what the combine reveals of the change of each party's parameters.

    Args:
        model: the model to train.
        epochs: passes over a party's samples in one round, 1 or more. Default 1.
        batch: samples of one step, 1 or more; None: all samples of the party. Default 10.
        lr: learning rate of the parties, above 0, or a schedule over rounds. Default 0.1.
        optimiser: optimiser of the parties; it starts anew in each round. Default SGD.
        server: optimiser of the server. Default: it adds the mean change.
        prox: factor of the proximal term of FedProx, 0 or more. Default 0.
        example_dp: DP-SGD in local training. Default: none.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax(), epochs=2, lr=0.1), atoll.Count(5), rounds=3)
        >>> atoll.simulate(job, data, seed=0).reason
        'all 3 rounds done'
    """

    model: Model
    epochs: int = 1
    batch: int | None = 10
    lr: float | Schedule = 0.1
    optimiser: Optimiser = Optimiser()
    server: ServerOptimiser = ServerOptimiser()
    prox: float = 0.0
    example_dp: ExampleDP | None = None

    def __post_init__(self) -> None:
        check_model(self.model)
        check_rate(self.lr)
        if self.epochs < 1:
            raise Mismatch(f"epochs={self.epochs}: a party trains for at least one epoch")
        if self.batch is not None and self.batch < 1:
            raise Mismatch(f"batch={self.batch}: a batch has at least one sample (leave it out for all of them)")
        if self.prox < 0:
            raise Mismatch(f"prox={self.prox}: the pull towards the shared model is not negative")
        if not isinstance(self.server, ServerOptimiser):
            raise Mismatch(f"server = {self.server!r}: write server=atoll.ServerOptimiser(atoll.optimiser(…), lr=…)")
        self.model.engine.check(self.optimiser)

    @property
    def train_loss(self) -> bool:
        return self.example_dp is None  # the losses of examples are protected by no noise

    @property
    def phases(self) -> Mapping[str, Phase]:
        return self.trained("delta")

    def init(self, world: World, population: Population) -> State:
        w = self.model.init(world.seed)
        return {"params": w, "server": self.server.start(w), "t": 0}

    def broadcast(self, state: State) -> Tree:
        return {"params": state["params"], "lr": rate(self.lr, int(state["t"]))}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w = broadcast["params"]
        how = Fit(self.epochs, self.batch, self.optimiser, self.prox, self.example_dp)
        after, loss = self.model.train(w, group, how, broadcast["lr"])
        return Contribution({"delta": after - w}, group.size, loss=loss)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        w, memory = self.server.step(state["params"], tree["delta"], state.get("server", {}))
        return {"params": w, "server": memory, "t": int(state["t"]) + 1}

    def example_steps(self, samples: int) -> tuple[float, int]:
        return poisson(samples, self.epochs, self.batch)

    def training(self) -> Alone:
        return Alone(self.model, Fit(self.epochs, self.batch, self.optimiser), self.lr)

    @property
    def passes(self) -> int:
        return self.epochs


class Settings(TypedDict, total=False):
    """The fields of `FedAvg` that its variants take too; each has the same default."""

    epochs: int
    batch: int | None
    lr: float | Schedule
    optimiser: Optimiser
    example_dp: ExampleDP | None


class PullSettings(Settings, total=False):
    """The same, and the pull towards the shared model."""

    prox: float


def FedProx(model: Model, mu: float = 0.01, **settings: Unpack[Settings]) -> FedAvg:  # noqa: N802 - a method's name
    """FedAvg whose parties also minimise the distance to the server's model: f_k(w) + mu/2·‖w − w_t‖² (Li et al. 2020).

    Args:
        model: the model to train.
        mu: factor of the proximal term, 0 or more. Default 0.01.
        **settings: the fields `epochs`, `batch`, `lr`, `optimiser` and `example_dp` of FedAvg.

    Example:
        >>> import atoll
        >>> atoll.FedProx(atoll.models.softmax(), mu=0.1, epochs=5).prox
        0.1
    """
    return FedAvg(model, prox=mu, **settings)


def _with(server: ServerOptimiser, model: Model, settings: PullSettings) -> FedAvg:
    return replace(FedAvg(model, **settings), server=server)


def fedavgm(model: Model, *, server_lr: float = 1.0, momentum: float = 0.9, **settings: Unpack[PullSettings]) -> FedAvg:
    """FedAvg with momentum on the server (Hsu et al. 2019).

    Args:
        model: the model to train.
        server_lr: learning rate of the server, above 0. Default 1.0.
        momentum: of the server's SGD, from 0 to below 1. Default 0.9.
        **settings: the fields `epochs`, `batch`, `lr`, `optimiser`, `prox` and `example_dp` of FedAvg.

    Example:
        >>> import atoll
        >>> atoll.fedavgm(atoll.models.softmax(), momentum=0.5).server.optimiser
        Optimiser(name='sgd', options=(('momentum', 0.5),))
    """
    return _with(ServerOptimiser(optimiser("sgd", momentum=momentum), server_lr), model, settings)


def fedadam(
    model: Model,
    *,
    server_lr: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-3,
    bias_correction: bool = False,
    **settings: Unpack[PullSettings],
) -> FedAvg:
    """FedAvg with Adam on the server (Reddi et al. 2021): w ← w + server_lr·m/(√v + eps).

    Args:
        model: the model to train.
        server_lr: learning rate of the server, above 0. Default 0.01.
        b1: decay of the first moment, from 0 to below 1. Default 0.9.
        b2: decay of the second moment, from 0 to below 1. Default 0.99.
        eps: added to the root of the second moment (τ in the paper), above 0. Default 0.001.
        bias_correction: whether both moments are divided by 1 − βᵗ in step t, as in Adam; the paper does not. Default
            false.
        **settings: the fields `epochs`, `batch`, `lr`, `optimiser`, `prox` and `example_dp` of FedAvg.

    Example:
        >>> import atoll
        >>> atoll.fedadam(atoll.models.softmax(), server_lr=0.02).server.lr
        0.02
    """
    moments = {"b1": b1, "b2": b2, "eps": eps, "bias_correction": bias_correction}
    return _with(ServerOptimiser(optimiser("fedadam", **moments), server_lr), model, settings)


def fedyogi(
    model: Model,
    *,
    server_lr: float = 0.01,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-3,
    bias_correction: bool = False,
    **settings: Unpack[PullSettings],
) -> FedAvg:
    """FedAvg with Yogi on the server (Reddi et al. 2021): w ← w + server_lr·m/(√v + eps).

    Args:
        model: the model to train.
        server_lr: learning rate of the server, above 0. Default 0.01.
        b1: decay of the first moment, from 0 to below 1. Default 0.9.
        b2: decay of the second moment, from 0 to below 1. Default 0.99.
        eps: added to the root of the second moment (τ in the paper), above 0. Default 0.001.
        bias_correction: whether both moments are divided by 1 − βᵗ in step t, as in Adam; the paper does not. Default
            false.
        **settings: the fields `epochs`, `batch`, `lr`, `optimiser`, `prox` and `example_dp` of FedAvg.

    Example:
        >>> import atoll
        >>> atoll.fedyogi(atoll.models.softmax()).server.optimiser.name
        'fedyogi'
    """
    moments = {"b1": b1, "b2": b2, "eps": eps, "bias_correction": bias_correction}
    return _with(ServerOptimiser(optimiser("fedyogi", **moments), server_lr), model, settings)


def fedadagrad(model: Model, *, server_lr: float = 0.1, eps: float = 1e-3, **settings: Unpack[PullSettings]) -> FedAvg:
    """FedAvg with Adagrad on the server (Reddi et al. 2021): w ← w + server_lr·Δ/(√v + eps), v the sum of all Δ².

    Args:
        model: the model to train.
        server_lr: learning rate of the server, above 0. Default 0.1.
        eps: added to the root of the second moment (τ in the paper), above 0. Default 0.001.
        **settings: the fields `epochs`, `batch`, `lr`, `optimiser`, `prox` and `example_dp` of FedAvg.

    Example:
        >>> import atoll
        >>> atoll.fedadagrad(atoll.models.softmax()).server.lr
        0.1
    """
    return _with(ServerOptimiser(optimiser("fedadagrad", eps=eps), server_lr), model, settings)
