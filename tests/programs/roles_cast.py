"""A small program with two roles, and a cast of real role sides with a hub that may lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from atoll.core.effects import Ask, Cohort, checkpoint, note, together
from atoll.core.party import Handler
from atoll.core.program import Agreed, Me, Role, Solo, one
from atoll.core.question import Layout, Leaf, Origin, Question
from atoll.core.tree import Tree
from atoll.core.world import World
from atoll.data.roles import RoleData, columns
from atoll.job.roles import RoleJob
from atoll.journal import Journal
from atoll.programs.roles import check_aligned
from atoll.runtimes.roles.simulate import SimulatedRoles


def _width(agreed: Agreed, role: str) -> int:
    return (agreed.data[role].sample.leaves["x"].shape or (0,))[0]


@dataclass(frozen=True)
class PassOn:
    """A passes its rows to B, two a round and masked with a secret of the session; B adds them up."""

    scale: float = 1.0
    roles: ClassVar[Mapping[str, Role]] = MappingProxyType({
        "A": Role("holds rows", "features"), "B": Role("adds them up", "labels"), "K": Role("makes a secret"),
    })  # fmt: skip

    def check(self, agreed: Agreed) -> None:
        check_aligned(agreed, ("A", "B"))

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        row, short = Leaf("float64", (_width(agreed, "A"),)), Leaf("int64", (9,), upto=True)
        done, mask = Leaf("bool", ()), Leaf("float64", ())
        return (
            Question("secret", Layout({}), Layout({"a": mask, "b": mask}), ("K",), {"A and B": "a mask"}, "nothing",
                     seals={"a": "A", "b": "B"}),
            Question("A.take", Layout({"mask": mask}), Layout({"done": done}), ("A",), {}, "nothing",
                     opens={"mask": Origin("K", "secret", "a")}),
            Question("B.take", Layout({"mask": mask}), Layout({"done": done}), ("B",), {}, "nothing",
                     opens={"mask": Origin("K", "secret", "b")}),
            Question("row", Layout({}), Layout({"row": row, "at": short}), ("A",), {"B": "a masked row"}, "sealed",
                     True, seals={"row": "B", "at": "B"}, times=2),
            Question("add", Layout({"row": row, "at": short}), Layout({"count": Leaf("int64", ())}), ("B",),
                     {"hub": "how many rows were added"}, "plain", True,
                     opens={"row": Origin("A", "row", "row"), "at": Origin("A", "row", "at")}, times=2),
        )  # fmt: skip

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        found = {"K": {"secret": self._secret}, "A": {"A.take": self._take, "row": self._row},
                 "B": {"B.take": self._take, "add": self._add}}[role]  # fmt: skip
        return {name: Solo(answer, role) for name, answer in found.items()}

    def seen(self) -> Mapping[str, str]:
        return {"B": "A's rows", "hub": "how many rows were added"}

    async def run(self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None) -> Tree:
        first, count = (int(memory["t"]), int(memory["count"])) if memory else (0, 0)
        if first < agreed.rounds:
            mask = await one(who["K"], "secret", t=first)
            await together(Ask(who["A"], "A.take", {"t": first, "mask": mask["a"]}),
                           Ask(who["B"], "B.take", {"t": first, "mask": mask["b"]}))  # fmt: skip
        for t in range(first, agreed.rounds):
            for step in range(2):
                row = await one(who["A"], "row", t=t, step=step)
                count = int((await one(who["B"], "add", t=t, step=step, **row))["count"])
            await note("round", round=t + 1)
            await checkpoint({"t": t + 1, "count": count})
        return {"count": np.array(count)}

    def _secret(self, body: Tree, me: Me) -> tuple[Tree, Mapping[str, Any]]:
        mask = np.array(float(np.random.default_rng().integers(2**20)))
        return {"a": mask, "b": mask}, {}

    def _take(self, body: Tree, me: Me) -> tuple[Tree, Mapping[str, Any]]:
        return {"done": np.array(True)}, {"secret/mask": np.array(body["mask"])}

    def _row(self, body: Tree, me: Me) -> tuple[Tree, Mapping[str, Any]]:
        at = 2 * me.t + int(body["step"])
        row = self.scale * me.x[at % len(me.x)] + me.memory["secret/mask"]
        return {"row": row, "at": np.arange(at % 5)}, {"sent": np.array(at + 1)}

    def _add(self, body: Tree, me: Me) -> tuple[Tree, Mapping[str, Any]]:
        total = me.memory.get("model/total", np.zeros_like(body["row"])) + body["row"] - me.memory["secret/mask"]
        count = np.array(int(me.memory.get("count", np.array(0))) + 1)
        return {"count": count}, {"model/total": total, "count": count, "model/label": me.y.sum()}


ROLES = {"A": "bank", "B": "shop", "K": "notary"}


def rows(n: int = 7, d: int = 3) -> dict[str, RoleData]:
    x = np.arange(n * d, dtype=float).reshape(n, d)
    return {"A": columns(x, ids=range(n)), "B": columns(np.zeros((n, 0)), np.arange(n), ids=range(n))}


class Cast:
    """Role sides after they have met, and a hub that asks whatever a test tells it to."""

    def __init__(self, job: RoleJob | None = None, data: Mapping[str, RoleData] | None = None, **watch: Any) -> None:
        from atoll.data.roles import nothing

        self.job = job or RoleJob(PassOn(), ROLES, rounds=3)
        held = {**dict.fromkeys(self.job.program.roles, nothing()), **(data or rows())}
        self.roles = SimulatedRoles(self.job, held, b"the job's hash".ljust(32), Journal(), **watch)
        self.sides = {role: self.roles.sides[number] for role, number in self.roles.setup.numbers.items()}

    def hellos(self, used: int = -1) -> dict[str, Any]:
        at = {"t": 0, "step": 0, "used": used}
        return {role: side.answer("roles.hello", at)["hello"] for role, side in self.sides.items()}

    def meet(self, hellos: Mapping[str, Any] | None = None, used: int = -1) -> Cast:
        body = {"t": 0, "step": 0, "used": used, "hellos": hellos or self.hellos(used)}
        for side in self.sides.values():
            side.answer("roles.meet", body)
        return self

    def ask(self, role: str, what: str, t: int = 0, step: int = 0, used: int = -1, **body: Any) -> dict[str, Any]:
        return self.sides[role].answer(what, {"t": t, "step": step, "used": used, **body})

    def start(self, t: int = 0, used: int = -1) -> Cast:
        mask = self.ask("K", "secret", t, used=used)
        self.ask("A", "A.take", t, used=used, mask=mask["a"])
        self.ask("B", "B.take", t, used=used, mask=mask["b"])
        return self
