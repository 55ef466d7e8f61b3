"""A runtime that holds a program to its laws: it writes every message, loses sessions, and looks at what it passes on.

`atoll.testing.check_program` uses them; each law that does not hold raises AssertionError.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atoll.core.effects import Ask, Note, Replies
from atoll.core.errors import AtollError
from atoll.core.party import ragged
from atoll.core.program import SECRET, Agreed, Program
from atoll.core.question import Question
from atoll.core.tree import Array, Tree, leaves, nest
from atoll.data.federated import Federated
from atoll.data.roles import RoleData
from atoll.job.assemble import agreement_of
from atoll.job.roles import RoleJob
from atoll.journal import Journal
from atoll.programs.roles import declared
from atoll.report.roles import explain_roles
from atoll.runtimes.local.check import Outcome
from atoll.runtimes.local.worker import Chunk, ChunkResult
from atoll.runtimes.network.messages.trees import read_tree, write_tree
from atoll.runtimes.roles.conversation import UNSAID, Lost, Unanswered, converse
from atoll.runtimes.roles.side import Work
from atoll.runtimes.roles.simulate import HeldData, RoleRun, SimulatedRoles, data_of, simulate_roles

_LONG = 16  # bytes of a plaintext that are not found in a ciphertext by chance
_NEAR = 1e-5  # how far the answer of a group may be from that of its parties one by one, relative to its size


def check_roles(program: Program, data: Mapping[str, RoleData | Federated], rounds: int, seed: int) -> RoleRun:
    """Hold a program with roles to its laws: simulated, written, with a lost session, resumed at every checkpoint."""
    job = _job(program, rounds, seed)
    held = data_of(job, data)
    assert explain_roles(job, {role: one.summary(b"") for role, one in held.items()})
    run = simulate_roles(job, data)
    noted = [fact["round"] for fact in run.facts if fact["what"] == "round"]
    assert noted == list(range(1, len(noted) + 1)), f"it notes rounds {noted}: note each when it is done"
    assert noted, "it notes no round"
    first, second = observed(job, held), observed(job, held)
    for other in (first, second):
        same_models(other.models, run.models, "a runtime that writes every message gives another result")
        same_models({"hub": other.found}, {"hub": run.found}, "a runtime that writes every message finds another")
    check_sealed(first.answers, second.answers)
    for lost in sorted({0, len(first.answers) // 2, len(first.answers) - 1}):
        again = observed(job, held, lost=lost)
        same_models(again.models, run.models, f"the result differs where answer {lost} and its session were lost")
    check_resumed(job, data, run, len(noted))
    return run


def run_of(program: Program, outcome: Outcome, rounds: int, seed: int) -> RoleRun:
    """Show what came of a program of a federation as the run of a program."""
    facts = [{"what": note.what, **note.facts} for note in outcome.notes]
    return RoleRun(_job(program, rounds, seed), outcome.found, {}, facts)


def _job(program: Program, rounds: int, seed: int) -> RoleJob:
    return RoleJob(program, {role: f"player-{role.lower()}" for role in program.roles}, rounds, seed)


class Seen(NamedTuple):
    """One answer as the hub passes it on, with what stands in its sealed leaves."""

    address: tuple[str, str, int, int]  # role, question, t, step
    leaves: Mapping[str, Array]
    plain: Mapping[str, Array]


class Observed(NamedTuple):
    """A run whose messages were all written and read."""

    models: Mapping[str, Mapping[str, Array]]
    found: Tree
    answers: list[Seen]


def observed(job: RoleJob, data: Mapping[str, HeldData], *, lost: int | None = None) -> Observed:
    """Run a job with every message written and read; with `lost` that answer never arrives, and the session ends."""
    summaries = {role: one.summary(b"") for role, one in data.items()}
    questions = declared(job.program, Agreed(summaries, job.rounds))
    watching = _Watching(questions)
    roles = SimulatedRoles(job, data, agreement_of(job.name), Journal(), watch=watching.of)
    posted = Posted(roles, watching, lost)
    try:
        ended = converse(roles.setup, posted, None)
    finally:
        roles.close()
    return Observed(roles.models, ended.found, posted.answers)


class _Watching:
    """Works every answer out twice, from arguments that cannot be changed, and remembers the last."""

    def __init__(self, questions: Mapping[str, Question]) -> None:
        self._questions = questions
        self.told: Mapping[str, Array] = {}

    def of(self, role: str, work: Work) -> Work:
        def twice(chunk: Chunk, body: Tree) -> ChunkResult:
            remembered = chunk.memory.leaves.values() if chunk.memory else ()
            for leaf in (*dict(leaves(body)).values(), *dict(leaves(chunk.each)).values(), *remembered):
                if isinstance(leaf, np.ndarray):
                    leaf.flags.writeable = False
            first, second = work(chunk, body), work(chunk, body)
            sealed = self._questions[chunk.what].seals
            for name, leaf in first.each.items():
                same = name in sealed or np.array_equal(leaf, second.each[name])
                assert same, f"role {role}, '{chunk.what}': leaf '{name}' differs when it is worked out again"
            assert first.memory.keys() == second.memory.keys(), f"role {role}, '{chunk.what}' remembers this or that"
            for name, leaf in first.memory.items():
                same = name.startswith(SECRET) or np.array_equal(leaf, second.memory[name])
                assert same, f"role {role}, '{chunk.what}': memory '{name}' differs: draw from me.world.private"
            self.told = {name: np.array(leaf[0]) for name, leaf in first.each.items() if name in sealed}
            if len(chunk.me) > 1:
                self._check_alone(role, work, chunk, body, first)
            return first

        return twice

    def _check_alone(self, role: str, work: Work, chunk: Chunk, body: Tree, found: ChunkResult) -> None:
        """A group of parties answers as each of them does alone."""
        for k in range(len(chunk.me)):
            memory = chunk.memory.only(k) if chunk.memory else None
            own = nest({path: leaf[k : k + 1] for path, leaf in leaves(chunk.each)})
            alone = work(chunk._replace(me=chunk.me[k : k + 1], memory=memory, each=own), body)
            for name, leaf in (*alone.each.items(), *alone.memory.items()):
                there = found.each[name] if name in found.each else found.memory[name]
                same = np.allclose(leaf[0], there[k], rtol=_NEAR, atol=_NEAR)
                assert same, f"role {role}, '{chunk.what}': '{name}' of a party alone differs from it in a group"


class Posted:
    """Asks roles as the network does: every message becomes bytes, and is read against its declared layout."""

    def __init__(self, roles: SimulatedRoles, watching: _Watching, lost: int | None = None) -> None:
        self._roles, self._watching, self._lose = roles, watching, lost
        self._questions: dict[str, Question] = {}
        self.answers: list[Seen] = []

    def ask(self, ask: Ask) -> Replies:
        layouts = self._questions[ask.what]
        if any(role in self._roles.crowds for role in layouts.roles):
            return self._ask_many(ask, layouts)
        rows: dict[str, list[Array]] = {}
        for number in np.asarray(ask.to).tolist():
            sent = write_tree({**ask.body, **ask.each.get(number, {})})
            side = self._roles.sides[number]
            self._watching.told = {}
            reply = side.answer(ask.what, read_tree(sent, layouts.asks.max_bytes, schema=layouts.asks))
            short = {path for path, leaf in layouts.answers.leaves.items() if leaf.upto}
            rowed = nest({path: v if path in short else np.asarray(v)[None] for path, v in leaves(reply)})
            read = read_tree(write_tree(rowed), layouts.answers.max_bytes, schema=layouts.answers)
            for path, leaf in leaves(read):
                rows.setdefault(path, []).append(leaf if path in short else leaf[0])
            if ask.what.startswith("roles."):
                continue
            role = self._roles.setup.role_of[number]
            address = (role, ask.what, int(ask.body["t"]), int(ask.body["step"]))
            self.answers.append(Seen(address, dict(leaves(reply)), self._watching.told))
            if self._lose == len(self.answers) - 1:
                raise Lost(role, ask.what)
        return Replies(np.asarray(ask.to), {path: ragged(parts) for path, parts in rows.items()})

    def _ask_many(self, ask: Ask, layouts: Question) -> Replies:
        """Write and read what every party of a role that many play is told, and what it answers."""
        body, each = ask.body, dict[int, Tree]()
        for number in np.asarray(ask.to).tolist():
            own = ask.each.get(number, {})
            read = read_tree(write_tree({**ask.body, **own}), layouts.asks.max_bytes, schema=layouts.asks)
            body, each[number] = {name: read[name] for name in ask.body}, {name: read[name] for name in own}
        replies = self._roles.ask(ask._replace(body=body, each=each))
        rows: dict[str, list[Array]] = {}
        for k in range(len(replies)):
            told = write_tree(nest({path: leaf[k : k + 1] for path, leaf in replies.each.items()}))
            for path, leaf in leaves(read_tree(told, layouts.answers.max_bytes, schema=layouts.answers)):
                rows.setdefault(path, []).append(leaf)
        address = (layouts.roles[0], ask.what, int(ask.body["t"]), int(ask.body["step"]))
        self.answers.append(Seen(address, {}, {}))
        if self._lose == len(self.answers) - 1:
            raise Lost(layouts.roles[0], ask.what)
        return Replies(replies.parties, {path: np.concatenate(parts) for path, parts in rows.items()})

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        return tuple(self.ask(ask) for ask in asks)

    def checkpoint(self, memory: Tree) -> None:
        for crowd in self._roles.crowds.values():
            crowd.commit()

    def note(self, note: Note) -> None:
        return

    def settle(self, used: Array) -> None:
        return

    def ready(self) -> None:
        return

    def declare(self, questions: Mapping[str, Question]) -> None:
        self._questions |= questions

    def begin(self, agreed: Agreed) -> None:
        self._roles.begin(agreed)

    def why(self, number: int) -> Unanswered:
        return UNSAID

    def lost(self, lost: Lost) -> None:
        return


def check_sealed(first: list[Seen], second: list[Seen]) -> None:
    """No sealed leaf shows what is in it, and none is the same in two runs."""
    again = {one.address: one for one in second}
    for one in first:
        role, what, t, _ = one.address
        for path, plain in one.plain.items():
            box = np.asarray(one.leaves[path]).tobytes()
            where = f"role {role}, '{what}' of round {t + 1}, leaf '{path}'"
            other = np.asarray(again[one.address].leaves[path]).tobytes()
            assert box != other, f"{where}: its sealed bytes are the same in two runs"
            raw = plain.tobytes()
            for at in range(0, len(raw) - _LONG + 1, _LONG):
                assert raw[at : at + _LONG] not in box, f"{where}: what is sealed can be read in it"


class _Stopped(AtollError):
    """A run that is interrupted for a test."""

    code = "interrupted_for_a_check"


def check_resumed(job: RoleJob, data: Mapping[str, RoleData | Federated], whole: RoleRun, rounds: int) -> None:
    """A run that is interrupted in any of its rounds, and resumed, leaves every role with the same."""
    for t in range(1, rounds + 1):

        def stop(note: Note, t: int = t) -> None:
            if note.what == "round" and note.facts["round"] == t:
                raise _Stopped

        with tempfile.TemporaryDirectory() as folder:
            try:
                simulate_roles(job, data, out=folder, sinks=(stop,))
            except _Stopped:
                pass
            else:
                raise AssertionError(f"round {t} was noted in one run and not in another")
            (found,) = Path(folder).iterdir()
            again = simulate_roles(job, data, resume=found)
        same_models(again.models, whole.models, f"a run resumed in round {t} gives another result")
        assert [f["round"] for f in again.facts if f["what"] == "round"] == list(range(1, rounds + 1))


def same_models(
    one: Mapping[str, Mapping[str, Array]], other: Mapping[str, Mapping[str, Array]], sentence: str
) -> None:
    """Every role is left with the same model, bit for bit."""
    assert one.keys() == other.keys(), sentence
    for role, model in one.items():
        assert model.keys() == other[role].keys(), f"{sentence} (role {role})"
        for name, leaf in model.items():
            there = other[role][name]
            same = leaf.dtype == there.dtype and leaf.shape == there.shape and leaf.tobytes() == there.tobytes()
            assert same, f"{sentence} (role {role}, '{name}')"
