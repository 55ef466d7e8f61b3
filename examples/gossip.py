"""Gossip on a ring: peers agree on the average of their columns, and each sees only its two neighbours' values.

There is no server. In every round each peer tells its values to its neighbours, and replaces them by a weighted mean of
its own and theirs: x ← W x. The mean of all peers stays what it is, and the values approach it at the rate of the
second largest eigenvalue of W. Run this file, or from a job file beside it: `atoll run gossip.toml` with

    name = "gossip"
    rounds = 60
    program = { use = "gossip:RingGossip" }
    [roles]
    peer = "clinics"
    [data.peer]
    use = "wine"
    clients = 16
    by = "iid"
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

import atoll
from atoll.core.effects import Cohort, ask, checkpoint, note
from atoll.core.party import Group, Handler, Memory
from atoll.core.program import Agreed, Program, Role
from atoll.core.question import Layout, Leaf, Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch
from atoll.core.world import World

VALUES = "model/values"  # what a peer remembers, and is left with


def ring(n: int, weight: float = 1 / 3) -> Array:
    """Return W, the weights with which each of n peers takes its own values and those of its two neighbours."""
    one = np.eye(n)
    return (1 - 2 * weight) * one + weight * (np.roll(one, 1, 0) + np.roll(one, -1, 0))


def means(group: Group) -> Array:
    """Return the means of every peer's columns."""
    return np.stack([np.mean(x, axis=0, dtype=np.float64) for x, _ in group])


@dataclass(frozen=True)
class Tell(Handler):
    """Tell the neighbours one's values; at first the means of one's columns."""

    split: str = "peer"
    group_size: int = 250

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        values = group.memory.leaves[VALUES] if group.memory.known.all() else means(group)
        return {"values": values}, {VALUES: values}


@dataclass(frozen=True)
class Mix(Handler):
    """Take the weighted mean of one's own values and the neighbours'."""

    weight: float
    split: str = "peer"
    group_size: int = 250

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        own = group.memory.leaves[VALUES]
        values = (1 - 2 * self.weight) * own + self.weight * (body["left"] + body["right"])
        return {"done": np.ones(len(group), bool)}, {VALUES: values}


@dataclass(frozen=True)
class RingGossip(Program):
    """Averages of columns that peers on a ring agree on, without a server.

    Args:
        weight: of each neighbour's values in a peer's next values, above 0 and below 1/2.
    """

    weight: float = 1 / 3

    roles: ClassVar[Mapping[str, Role]] = MappingProxyType(
        {"peer": Role("holds rows, and mixes its averages with its neighbours'", "features", many=True)}
    )

    def __post_init__(self) -> None:
        if not 0 < self.weight < 0.5:
            raise ValueError(f"weight={self.weight}: it is above 0 and below 1/2")

    def check(self, agreed: Agreed) -> None:
        if agreed.data["peer"].parties < 3:
            raise Mismatch(f"{agreed.data['peer'].parties} peers are no ring: give data of at least 3 parties")

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        values = Leaf("float64", agreed.data["peer"].sample.leaves["x"].shape)
        said = {"neighbours": "its values: at first the means of its columns, later mixed with others' values"}
        asks = Layout({"left": values, "right": values})
        return (
            Question("tell", Layout({}), Layout({"values": values}), ("peer",), said, "plain", True),
            Question("mix", asks, Layout({"done": Leaf("bool", ())}), ("peer",), {}, "nothing"),
        )

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        return {"tell": Tell(), "mix": Mix(self.weight)}

    def seen(self) -> Mapping[str, str]:
        return {
            "neighbours": "a peer's values in every round: first the means of its columns",
            "other peers": "nothing of a peer but what has been mixed into the values of its neighbours",
            "all peers": "the result: the average over peers of the means of their columns, up to what mixing leaves",
            "not promised": "two neighbours of a peer that work together see all that enters and leaves it",
        }

    def run(
        self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None
    ) -> Coroutine[Any, Any, Tree]:
        return _run(who["peer"], agreed.rounds, int(memory["t"]) if memory else 0, world)


async def _run(peers: Cohort, rounds: int, first: int, world: World) -> Tree:
    for t in range(first, rounds):
        values = (await ask(peers, "tell", {"t": t})).each["values"]
        left, right = np.roll(values, 1, axis=0), np.roll(values, -1, axis=0)
        told = {int(peer): {"left": left[k], "right": right[k]} for k, peer in enumerate(peers)}
        await ask(peers, "mix", {"t": t}, each=told)
        # Only whoever watches a simulation knows how far peers are apart.
        apart = {"spread": float(np.linalg.norm(values - values.mean(axis=0)))} if world.watched else {}
        await note("round", round=t + 1, **apart)
        await checkpoint({"t": t + 1})
    return {}


def main() -> None:
    data = atoll.data.load("wine").split(16, by="iid", seed=0)
    run = atoll.simulate_roles(atoll.RoleJob(RingGossip(), {"peer": "clinics"}, rounds=60), {"peer": data})
    start = np.stack([np.mean(x, axis=0, dtype=np.float64) for x, _ in data.train])
    values = run.models["peer"]["values"]
    spreads = [fact["spread"] for fact in run.facts if fact["what"] == "round"]
    second = np.sort(np.abs(np.linalg.eigvalsh(ring(16))))[-2]
    print(f"peers {len(values)}, columns {values.shape[1]}, rounds {len(spreads)}")
    print(f"the mean moved by {np.abs(values.mean(axis=0) - start.mean(axis=0)).max():.1e}")
    print(f"the spread shrinks by {spreads[-1] / spreads[-2]:.6f} a round; the second eigenvalue is {second:.6f}")


if __name__ == "__main__":
    main()
