"""Programs with roles: who talks in which order, what may be asked of whom. `federate` is one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from atoll.core.effects import Cohort, Running, ask
from atoll.core.given import Part
from atoll.core.method import DataSummary
from atoll.core.party import Group, Handler, Memory
from atoll.core.question import Question
from atoll.core.tree import Array, Tree, leaves, nest
from atoll.core.world import World

SECRET = "secret/"  # noqa: S105 - leaves of a role's memory below it are never written: they end with the session
MODEL = "model/"  # leaves below it are what the role is left with at the end


class Role(NamedTuple):
    """A part that somebody plays in a program.

    Args:
        about: what the role does, in words.
        holds: the data that whoever plays it must bring: "features" (columns, no label), "labels" (a label, with or
            without columns), "samples" (columns and a label) or "nothing". Default "nothing".
        many: whether several parties play it, as equals: those of a federation, whose data says how many they are.
            Default false.
    """

    about: str
    holds: Literal["features", "labels", "samples", "nothing"] = "nothing"
    many: bool = False


class Agreed(NamedTuple):
    """What all roles know and have agreed on before the first question.

    Args:
        data: for each role that brings data, its summary.
        rounds: number of rounds. Default 1.
    """

    data: Mapping[str, DataSummary]
    rounds: int = 1


class Program(Part, Protocol):
    """A conversation among roles. The hub that runs it plays none of them and computes nothing on private data.

    A question's leaves that one role seals for another travel through the hub unread: see `Question.seals`.
    """

    @property
    def roles(self) -> Mapping[str, Role]: ...

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        """Declare all that may be asked. Layouts are as handlers see them: without an axis of parties, unsealed."""
        ...

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        """Return how a role answers, by question. The split of a handler is the name of its role; of `federate`, whose
        parties hold several, that of the samples.

        A role that many play is answered for in groups of the handler's `group_size`: what each party is told by itself
        has a leading axis of parties then. With a `group_size` of 1, as of `Solo`, no leaf of a question has one.
        """
        ...

    def seen(self) -> Mapping[str, str]:
        """Say in words who learns what, which roles must not work together, and what is assumed."""
        ...

    def run(self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None) -> Running[Tree]:
        """Lead the conversation; return what the hub found out.

        It is started again, with the last checkpoint as `memory`, whenever a role has lost its session: secrets of the
        protocol are then made anew. A checkpoint holds `t`, the number of rounds that are done; it grows.
        """
        ...

    def check(self, agreed: Agreed) -> None:
        """Refuse rows or columns that do not fit together, before anything is asked."""
        return


class Me(NamedTuple):
    """A role as its handler sees it.

    Args:
        x: its rows.
        y: its labels; without a label it has no columns.
        memory: what it remembers.
        world: where the run takes place; all randomness comes from it.
        t: the number of the round, from 0.
        number: the number of the party: private draws of a role that many play have it in their address. Default 0.
    """

    x: Array
    y: Array
    memory: Memory
    world: World
    t: int
    number: int = 0


@dataclass(frozen=True)
class Solo(Handler):
    """Lift a function of one role to a handler. Nothing has an axis of parties.

    Args:
        answer: function from (body, me) to (reply, changes of its memory); a change to None forgets a leaf.
        split: the name of the role. Default "train".
        group_size: number of parties in one call. Default 1.
    """

    answer: Callable[[Tree, Me], tuple[Tree, Mapping[str, object]]]
    split: str = "train"
    group_size: int = 1

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        ((x, y),) = group
        there, found = group.memory.present, group.memory.leaves.items()
        before = {n: leaf[0] for n, leaf in found if n != SECRET and there.get(n, group.memory.known)[0]}
        reply, changes = self.answer(body, Me(x, y, before, group.world, group.t, int(group.me[0])))
        after = {name: leaf for name, leaf in {**before, **changes}.items() if leaf is not None}
        if before and not after:  # no memory at all would say that nothing has changed
            after = {SECRET: np.zeros(0)}
        told = dict(leaves(reply))
        return {n: np.asarray(v)[None] for n, v in told.items()}, {n: np.asarray(v)[None] for n, v in after.items()}


async def one(who: Cohort, what: str, **body: object) -> dict[str, object]:
    """Ask a role that one party plays, and return its answer as a tree.

    Args:
        who: the number of the party, as an array of length 1.
        what: the name of the question.
        **body: what it receives: `t`, and possibly `step`, among it.
    """
    return nest((await ask(who, what, body))[int(who[0])])
