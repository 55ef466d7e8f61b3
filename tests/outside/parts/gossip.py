"""Gossip among equals: decentralised SGD (Lian et al. 2017) on a ring, as one program with a role that many play."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.effects import Cohort, ask, checkpoint, note
from atoll.core.party import Group, Handler, Memory
from atoll.core.program import Agreed, Program, Role
from atoll.core.question import Layout, Leaf, Question
from atoll.core.tree import Array, Tree
from atoll.core.world import World

MODEL = "model/w"


def ring(n: int) -> Array:
    """Return the weights with which each of n peers mixes its own model and those of its two neighbours."""
    one = np.eye(n)
    return (one + np.roll(one, 1, 0) + np.roll(one, -1, 0)) / 3


def gradient(w: Array, x: Array, y: Array) -> Array:
    """Return the gradient of half the mean squared error."""
    return x.T.astype(np.float64) @ (x @ w - y) / len(y)


@dataclass(frozen=True)
class Tell(Handler):
    """Tell the neighbours one's model; the first is drawn."""

    split: str = "peer"
    group_size: int = 250

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        if group.memory.known.all():
            return {"model": group.memory.leaves[MODEL]}, {}
        d = group.samples.x.shape[1]
        models = np.stack([group.world.public_rng("start", int(me)).normal(size=d) for me in group.me])
        return {"model": models}, {MODEL: models}


@dataclass(frozen=True)
class Step(Handler):
    """Mix one's model with the neighbours', and move it against the gradient at one's own."""

    lr: float
    split: str = "peer"
    group_size: int = 250

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        own = group.memory.leaves[MODEL]
        slopes = np.stack([gradient(own[k], x, y) for k, (x, y) in enumerate(group)])
        models = (own + body["left"] + body["right"]) / 3 - self.lr * slopes
        return {"done": np.ones(len(group), bool)}, {MODEL: models}


@dataclass(frozen=True)
class Gossip(Program):
    """D-PSGD for linear regression: x_i ← Σ_j W_ij x_j − lr·∇F_i(x_i), W a ring."""

    lr: float = 0.1

    @property
    def roles(self) -> Mapping[str, Role]:
        return {"peer": Role("trains a model and mixes it with its neighbours'", "samples", many=True)}

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        model = Leaf("float64", agreed.data["peer"].sample.leaves["x"].shape)
        said, near = {"neighbours": "the peer's model after each step"}, Layout({"left": model, "right": model})
        return (
            Question("tell", Layout({}), Layout({"model": model}), ("peer",), said, "plain", contributes=True),
            Question("step", near, Layout({"done": Leaf("bool", ())}), ("peer",), {}, "nothing"),
        )

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        return {"tell": Tell(), "step": Step(self.lr)}

    def seen(self) -> Mapping[str, str]:
        return {"neighbours": "a peer's model after each step", "others": "nothing"}

    def run(
        self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None
    ) -> Coroutine[Any, Any, Tree]:
        return self._run(who["peer"], agreed.rounds, int(memory["t"]) if memory else 0)

    async def _run(self, peers: Cohort, rounds: int, first: int) -> Tree:
        for t in range(first, rounds):
            models = (await ask(peers, "tell", {"t": t})).each["model"]
            near = zip(peers.tolist(), np.roll(models, 1, 0), np.roll(models, -1, 0), strict=True)
            await ask(peers, "step", {"t": t}, each={peer: {"left": a, "right": b} for peer, a, b in near})
            await note("round", round=t + 1, consensus=float(np.linalg.norm(models - models.mean(0))))
            await checkpoint({"t": t + 1})
        return {}
