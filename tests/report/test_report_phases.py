"""What a round of several phases costs: each phase is priced by what it tells parties itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import atoll
from atoll.core.method import Contribution, Method, Phase, Population, RoundInfo, State
from atoll.core.party import Group
from atoll.core.question import Layout, Leaf
from atoll.core.tree import Schema, Tree
from atoll.core.world import World
from atoll.report.units import in_bytes

SMALL, LARGE = 10, 5_000


@dataclass(frozen=True)
class Two(Method):
    """First a few numbers are told, then many: the second phase tells what the first has found, spread out."""

    @property
    def phases(self) -> Mapping[str, Phase]:
        first = Phase(Schema((("x", (SMALL,)),)))
        leaves = {"x": Leaf("float64", (SMALL,)), "more": Leaf("float64", (LARGE,))}
        return {"first": first, "second": first._replace(broadcast=Layout(leaves))}

    @property
    def cycle(self) -> tuple[str, ...]:
        return tuple(self.phases)

    def init(self, world: World, population: Population) -> State:
        return {"x": np.zeros(SMALL), "second": np.array(False)}

    def phase(self, state: State) -> str:
        return "second" if state["second"] else "first"

    def complete(self, state: State) -> bool:
        return not state["second"]

    def broadcast(self, state: State) -> Tree:
        return {"x": state["x"], **({"more": np.zeros(LARGE)} if state["second"] else {})}

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        return Contribution({"x": np.ones((len(group), SMALL))}, group.size)

    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        return {"x": state["x"] + tree["x"], "second": ~state["second"]}


def test_explain_and_facts_price_each_phase_by_its_own_broadcast() -> None:
    data = atoll.data.load("wine").split(4, seed=0)
    job = atoll.Job(Two(), atoll.All(), atoll.Channel([atoll.Average()]), rounds=2)
    told = 8 * (SMALL + SMALL + LARGE)
    received = atoll.assemble(job, data).program.round_cost.each.down
    assert 0 < received - told < 500  # names, types and shapes
    said = str(atoll.explain(job, data))
    assert f"receives {in_bytes(received)} in a round it takes part in" in said
    facts = [fact for fact in atoll.simulate(job, data, workers=0).facts if fact["what"] == "round"]
    down = [fact["bytes_down"] for fact in facts]
    assert [fact["phase"] for fact in facts] == ["first", "second"] * 2
    beside = [one / 4 - numbers for one, numbers in zip(down, [8 * SMALL, 8 * (SMALL + LARGE)] * 2, strict=True)]
    assert all(0 < names < 250 for names in beside)
    assert abs(sum(down) / 8 - received) < 20
