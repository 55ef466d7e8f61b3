"""Federated SGD: one full-batch step a round, exchanged as gradients or as weights. The two are one algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atoll.core.errors import Mismatch
from atoll.core.method import Contribution, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.tree import Tree
from atoll.core.world import World
from atoll.methods.schedule import Schedule, check_rate, rate
from atoll.methods.trained import Alone, Trained, check_model
from atoll.models.batches import poisson
from atoll.models.example_dp import ExampleDP
from atoll.models.model import Fit, Model


@dataclass(frozen=True)
class FedSGD(Trained):
    """Average the gradients of all samples of the parties and take one step; or average the weights after that step.

    Needs: a mean, Weigh() or Average().
    Reveals: what the combine reveals of each party's gradient or weights.

    Args:
        model: the model to train.
        lr: learning rate, above 0, or a schedule over rounds. Default 0.1.
        by: what parties send, "gradients" (the default) or "weights"; the results agree up to rounding.
        example_dp: DP-SGD in local training. Default: none.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(5, seed=0)
        >>> run = atoll.simulate(atoll.Job(atoll.FedSGD(atoll.models.softmax(), lr=0.5), atoll.All(), rounds=2), data)
        >>> len(run.curve("test.accuracy")[0])  # round 0 is the untrained model
        3
    """

    model: Model
    lr: float | Schedule = 0.1
    by: Literal["gradients", "weights"] = "gradients"
    example_dp: ExampleDP | None = None

    def __post_init__(self) -> None:
        check_model(self.model)
        check_rate(self.lr)
        if self.by not in ("gradients", "weights"):
            raise Mismatch(f"by='{self.by}': FedSGD exchanges 'gradients' or 'weights'")

    @property
    def train_loss(self) -> bool:
        return self.example_dp is None  # the losses of examples are protected by no noise

    @property
    def phases(self) -> Mapping[str, Phase]:
        return self.trained(self.by)

    @property
    def changes(self) -> bool:
        return self.by == "gradients"

    def init(self, world: World, population: Population) -> State:
        return {"params": self.model.init(world.seed), "t": 0}

    def broadcast(self, state: State) -> Tree:
        return {"params": state["params"], "lr": rate(self.lr, int(state["t"]))}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        w, how = broadcast["params"], Fit(example_dp=self.example_dp)
        if self.by == "weights":
            after, loss = self.model.train(w, group, how, broadcast["lr"])
            return Contribution({"weights": after}, group.size, loss=loss)
        if self.example_dp is not None:
            # A step of size 1 goes from w to w − g; what it rounds off is far below the noise.
            return Contribution({"gradients": w - self.model.fit(w, group, how, 1.0)}, group.size)
        g, loss = self.model.grad_and_loss(w, group)
        return Contribution({"gradients": g}, group.size, loss=loss)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        t = int(state["t"])
        if self.by == "weights":
            return {"params": tree["weights"], "t": t + 1}
        w = state["params"]
        return {"params": w - w.dtype.type(rate(self.lr, t)) * tree["gradients"], "t": t + 1}

    def training(self) -> Alone:
        return Alone(self.model, Fit(), self.lr)

    def example_steps(self, samples: int) -> tuple[float, int]:
        return poisson(samples, 1, None)
