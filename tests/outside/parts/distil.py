"""FedMD (Li and Wang 2019): parties with different models share what these say of public samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np

import atoll
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


class Net(Protocol):
    """A model of one party: parameters as a flat array, scores of rows, training towards probabilities of classes."""

    def start(self, features: int, classes: int, seed: int) -> Array: ...
    def scores(self, w: Array, x: Array, classes: int) -> Array: ...
    def fit(self, w: Array, x: Array, q: Array, steps: int) -> Array: ...


@dataclass(frozen=True)
class JaxNet:
    """One hidden layer, in JAX."""

    hidden: int = 32

    def start(self, features: int, classes: int, seed: int) -> Array:
        scale = np.repeat([features, self.hidden], [features * self.hidden, self.hidden * classes])
        return np.random.default_rng(seed).normal(0, scale**-0.5).astype(np.float32)

    def scores(self, w: Array, x: Array, classes: int) -> Array:
        return np.asarray(_jax(self.hidden, classes)[0](w, x.astype(np.float32)))

    def fit(self, w: Array, x: Array, q: Array, steps: int) -> Array:
        return np.asarray(_jax(self.hidden, q.shape[1])[1](w, x.astype(np.float32), q.astype(np.float32), steps))


@lru_cache
def _jax(hidden: int, classes: int) -> tuple[Any, Any]:
    import jax

    def scores(w: Any, x: Any) -> Any:
        first, second = w[: -hidden * classes].reshape(-1, hidden), w[-hidden * classes :].reshape(hidden, classes)
        return jax.nn.relu(x @ first) @ second

    def fit(w: Any, x: Any, q: Any, steps: Any) -> Any:
        loss = jax.grad(lambda w: -(q * jax.nn.log_softmax(scores(w, x))).sum(1).mean())
        return jax.lax.fori_loop(0, steps, lambda _, w: w - 0.5 * loss(w), w)

    return jax.jit(scores), jax.jit(fit)


@dataclass(frozen=True)
class TorchNet:
    """One hidden layer with a tanh, in PyTorch."""

    hidden: int = 24

    def start(self, features: int, classes: int, seed: int) -> Array:
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.net(features, classes)[1]().numpy()

    def net(self, features: int, classes: int, w: Array | None = None) -> tuple[Any, Any]:
        """Return the network, and a function that gives its parameters."""
        from torch import nn, set_num_threads, tensor

        set_num_threads(1)  # there are as many parties at work as cores
        made = nn.Sequential(nn.Linear(features, self.hidden), nn.Tanh(), nn.Linear(self.hidden, classes))
        if w is not None:
            nn.utils.vector_to_parameters(tensor(w), made.parameters())
        return made, lambda: nn.utils.parameters_to_vector(made.parameters()).detach()

    def scores(self, w: Array, x: Array, classes: int) -> Array:
        from torch import tensor

        return self.net(x.shape[1], classes, w)[0](tensor(x, dtype=tensor(w).dtype)).detach().numpy()

    def fit(self, w: Array, x: Array, q: Array, steps: int) -> Array:
        import torch

        net, parameters = self.net(x.shape[1], q.shape[1], w)
        rows, target = (torch.tensor(a, dtype=torch.float32) for a in (x, q))
        step = torch.optim.SGD(net.parameters(), 0.5)
        for _ in range(steps):
            step.zero_grad()
            torch.nn.functional.cross_entropy(net(rows), target).backward()
            step.step()
        return parameters().numpy()


@dataclass(frozen=True)
class RidgeNet:
    """Ridge regression on the classes by scikit-learn, pulled to the coefficients that it starts with."""

    alpha: float = 10.0
    scale: float = 10.0  # from probabilities to scores

    def start(self, features: int, classes: int, seed: int) -> Array:
        return np.zeros((features + 1) * classes)

    def scores(self, w: Array, x: Array, classes: int) -> Array:
        return self.scale * (np.column_stack([x, np.ones(len(x))]) @ w.reshape(-1, classes))

    def fit(self, w: Array, x: Array, q: Array, steps: int) -> Array:
        from sklearn.linear_model import Ridge

        rest = q - self.scores(w, x, q.shape[1]) / self.scale
        found = Ridge(alpha=self.alpha).fit(x.astype(np.float64), rest)
        return w + np.vstack([found.coef_.T, found.intercept_]).ravel()


@dataclass(frozen=True)
class FedMD(Method):
    """The state is the mean of the parties' scores of public samples; each party learns from it in its own way.

    Party k has the model nets[k % len(nets)]. `public` names a data set, of which the test samples are used.
    """

    nets: tuple[Net, ...]
    public: str = "digits"
    first: int = 200  # steps on one's own data before the first exchange
    digest: int = 100  # steps towards the mean of the scores
    revisit: int = 10  # steps on one's own data after that
    features: int = 0
    classes: int = 0
    remembers = True

    def bind(self, summary: DataSummary) -> Self:
        (features,) = summary.sample.leaves["x"].shape or ()
        return replace(self, features=features, classes=summary.classes)

    @property
    def samples(self) -> Array:
        return _public(self.public)

    @property
    def phases(self) -> Mapping[str, Phase]:
        return {"scores": Phase(Schema((("scores", (len(self.samples), self.classes)),)))}

    def init(self, world: World, population: Population) -> State:
        return {"scores": np.zeros((len(self.samples), self.classes)), "t": 0}

    def constant(self, state: State) -> Tree:
        return {"public": self.samples}

    def prepare(self, constant: Tree, group: Group) -> Sequence[Any]:
        return [constant["public"]] * len(group)

    def broadcast(self, state: State) -> Tree:
        return {"scores": state["scores"], "t": int(state["t"])}

    def models(self, group: Group) -> list[tuple[Net, Array]]:
        """Return each party's model and its parameters."""
        kinds = [self.nets[me % len(self.nets)] for me in group.me]
        held = group.memory.get("w", 0.0)
        return [
            (net, w if known else net.start(self.features, self.classes, int(me)))
            for net, w, known, me in zip(kinds, held, group.memory.known, group.me, strict=True)
        ]

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        after, said = np.empty(len(group), object), []
        for k, ((x, y), (net, w)) in enumerate(zip(group, self.models(group), strict=True)):
            labels, new = np.eye(self.classes)[y], not group.memory.known[k]
            if broadcast["t"] and not new:
                w = net.fit(w, group.cache[k], softmax(broadcast["scores"]), self.digest)  # noqa: PLW2901
            after[k] = net.fit(w, x, labels, self.first if new else self.revisit)
            said.append(net.scores(after[k], group.cache[k], self.classes))
        return Contribution({"scores": np.stack(said).astype(np.float64)}, group.size, {"w": after})

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"scores": tree["scores"], "t": int(state["t"]) + 1}

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        models = self.models(group)
        right = [
            (n.scores(w, x, self.classes).argmax(1) == y).sum() for (n, w), (x, y) in zip(models, group, strict=True)
        ]
        return {"n": group.size.astype(np.float64), "correct": np.array(right, np.float64)}

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation({"n": (), "correct": ()}, _accuracy, {"accuracy": "high"}, lambda s: s["correct"] / s["n"])


def _accuracy(sums: Mapping[str, Array]) -> dict[str, float]:
    return {"accuracy": float(sums["correct"] / max(float(sums["n"]), 1.0))}


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@lru_cache
def _public(name: str) -> Array:
    held_out = atoll.data.load(name).split(1, seed=0).test
    assert held_out is not None
    return held_out.x
