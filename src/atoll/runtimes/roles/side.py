"""A role's side of a program: it opens what others sealed, answers once, seals, and remembers. The same everywhere.

A simulation and a party over the network run this code; they differ in who does the work and where memory is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from atoll.core.method import DataSummary, digest
from atoll.core.party import Remembered
from atoll.core.program import MODEL, SECRET, Agreed
from atoll.core.question import Fault, Layout, Question
from atoll.core.tree import EMPTY, Array, Tree, leaves, nest
from atoll.crypto.keys import Identity, Pair, Refused, refuse_if
from atoll.programs.roles import END, HELLO, MEET, from_bytes, on_wire, runtime_questions, to_bytes
from atoll.programs.session import Sealing, read_hello, session_id, write_hello
from atoll.runtimes.local.worker import Chunk, ChunkResult, PartyFailed
from atoll.runtimes.roles.memory import RoleMemory

NO_SESSION = "this role has no session with the others: it was started again, or they were"

Work = Callable[[Chunk, Tree], ChunkResult]


class NoSession(Refused):
    """A question to a role that has not met the others since it was started: a new meeting helps."""

    code = "no_session"

    def __init__(self) -> None:
        super().__init__(NO_SESSION)


class Prepared(NamedTuple):
    """What a role needs once it knows what everybody brings: what may be asked of it, and who works the answers out."""

    questions: Mapping[str, Question]
    work: Work


@dataclass(frozen=True)
class RoleContext:
    """Which role a party plays, in which job, among whom.

    `agreement` is the hash of the job's text, `roles` says who plays what, `keys` has everybody's public key by name,
    from this party's own file. `summary` says what this role brings; `many` what the roles bring that many play.
    """

    role: str
    number: int
    identity: Identity
    agreement: bytes
    roles: Mapping[str, str]
    keys: Mapping[str, bytes] = field(repr=False)
    summary: DataSummary
    rounds: int
    many: Mapping[str, DataSummary] = field(default_factory=lambda: EMPTY)

    @property
    def name(self) -> str:
        return self.roles[self.role]


class _Session(NamedTuple):
    """What lasts from one meeting to the next."""

    sealing: Sealing
    prepared: Prepared
    secret: dict[str, Array]  # memory that is never written
    answers: dict[tuple[int, str, int], tuple[bytes, dict[str, Any] | None]]  # by address; None: it was settled


class RoleSide:
    """Answers for one role. A question that is wrong raises Refused, or a Fault of its layout, and changes nothing.

    Args:
        context: which role, in which job, among whom.
        memory: what the role remembers.
        prepare: is told what everybody brings when a session begins, and may refuse it.
    """

    def __init__(self, context: RoleContext, memory: RoleMemory, prepare: Callable[[Agreed], Prepared]) -> None:
        self._context, self._memory, self._prepare = context, memory, prepare
        self._pair: Pair | None = None
        self._session: _Session | None = None

    @property
    def memory(self) -> RoleMemory:
        return self._memory

    @property
    def model(self) -> dict[str, Array]:
        """What this role is left with."""
        return {name[len(MODEL) :]: leaf for name, leaf in self._memory.leaves.items() if name.startswith(MODEL)}

    def answer(self, what: str, body: Tree) -> dict[str, Any]:
        """Answer a question as it came; the answer is as it travels, without an axis of parties."""
        fixed = runtime_questions(self._context.roles).get(what)
        if fixed is not None:
            on_wire(fixed, axis=False).asks.check(body)
        if what == HELLO:
            return self._hello()
        if what == MEET:
            return self._meet(body)
        if self._session is None:
            raise NoSession
        if what == END:
            self._settle(self._session, int(body["used"]))
            return {"done": np.array(True)}
        return self._once(self._session, what, body)

    def _hello(self) -> dict[str, Any]:
        """Make a new key; whatever session there was has ended."""
        context = self._context
        self._session, self._pair = None, Pair.new()
        said = write_hello(context.identity, context.agreement, context.role, context.name, self._pair, context.summary)
        return {"hello": np.frombuffer(said, np.uint8)}

    def _meet(self, body: Tree) -> dict[str, Any]:
        """Check who is there by their signatures, agree on secrets with each, and begin a session."""
        context, pair = self._context, self._pair
        if pair is None:
            raise NoSession
        said = {role: np.asarray(body["hellos"][role]).tobytes() for role in context.roles}
        present = {
            role: read_hello(said[role], role, name, context.agreement, context.keys[name])
            for role, name in context.roles.items()
        }
        mine = present[context.role]
        changed = mine.key != pair.public or mine.summary != context.summary
        refuse_if(
            changed,
            "the hub passes on another hello of this role than its last: this party has joined twice (stop one), or "
            "the hub is broken or lies",
        )
        session = session_id(context.agreement, present, context.keys)
        data = {role: one.summary for role, one in present.items()} | dict(context.many)
        prepared = self._prepare(Agreed(data, context.rounds))
        self._memory.begin(int(body["used"]))
        sealing = Sealing.of(context.agreement, session, context.role, pair, present)
        self._session, self._pair = _Session(sealing, prepared, {}, {}), None
        return {"session": np.frombuffer(session, np.uint8)}

    def _once(self, session: _Session, what: str, body: Tree) -> dict[str, Any]:
        """Answer at an address once; asked again, send the same answer."""
        question = session.prepared.questions.get(what)
        if question is None or self._context.role not in question.roles:
            raise Refused(f"{what!r} is no question to role {self._context.role} in this job")
        on_wire(question, axis=False).asks.check(body)
        t, step = int(body["t"]), int(body["step"])
        address, asked = (t, what, step), digest(body)
        if address in session.answers:
            before, answer = session.answers[address]
            refuse_if(answer is None, f"'{what}' of round {t + 1} was answered, and the round is done")
            refuse_if(before != asked, f"'{what}' of round {t + 1}, step {step}, comes again with something else in it")
            assert answer is not None
            return answer
        self._settle(session, int(body["used"]))
        reply = self._work(session, question, body, t, step)
        session.answers[address] = (asked, reply)
        return reply

    def _settle(self, session: _Session, used: int) -> None:
        if self._memory.settle(used):
            session.answers.update({address: (asked, None) for address, (asked, _) in session.answers.items()})

    def _work(self, session: _Session, question: Question, body: Tree, t: int, step: int) -> dict[str, Any]:
        found = dict(leaves(body))
        for path, origin in question.opens.items():
            raw = session.sealing.open(np.asarray(found[path]).tobytes(), origin=origin, t=t, step=step)
            found[path] = from_bytes(raw, question.asks.leaves[path], f"leaf '{path}' of '{question.name}'")
        told = {path: leaf for path, leaf in found.items() if path not in ("t", "step", "used")}
        self._check(question, question.asks, told)
        known = {**self._memory.leaves, **session.secret}
        memory = Remembered(np.ones(1, bool), {name: leaf[None] for name, leaf in known.items()}) if known else None
        chunk = Chunk(question.name, t, np.array([self._context.number]), memory, ())
        result = session.prepared.work(chunk, nest(found))
        told = {path: np.array(leaf)[0] for path, leaf in result.each.items()}
        told = {path: np.asarray(leaf) for path, leaf in told.items()}
        self._check(question, question.answers, told)
        for path, reader in question.seals.items():
            text = to_bytes(told[path], question.answers.leaves[path])
            box = session.sealing.seal(text, reader=reader, question=question.name, leaf=path, t=t, step=step)
            told[path] = np.frombuffer(box, np.uint8)
        if result.memory:
            after = {name: np.array(leaf)[0] for name, leaf in result.memory.items()}
            self._memory.remember({name: np.asarray(v) for name, v in after.items() if not name.startswith(SECRET)})
            session.secret.clear()
            session.secret.update({name: np.asarray(v) for name, v in after.items() if name.startswith(SECRET)})
        return nest(told)

    def _check(self, question: Question, layout: Layout, found: Tree) -> None:
        """Hold unsealed leaves against their layout. What is wrong may show their numbers, so the hub is not told."""
        try:
            layout.check_leaves(found)
        except Fault as fault:
            raise PartyFailed(f"role {self._context.role}, '{question.name}': {fault}") from None
