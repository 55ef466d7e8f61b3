"""Programs with roles: what is declared, what is refused before anything is asked, checkpoints, lost sessions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roles_cast import ROLES, Cast, PassOn, rows

import atoll
from atoll.core.effects import Ask, Note, ask, checkpoint, drive, together
from atoll.core.program import Agreed, Role, Solo, one
from atoll.core.question import Layout, Leaf, Origin, Question
from atoll.core.wire import Mismatch
from atoll.crypto.keys import Refused
from atoll.data.roles import columns, nothing
from atoll.journal import Journal
from atoll.programs.roles import declared, from_bytes, on_wire, to_bytes
from atoll.runtimes.roles.conversation import Conversation, Lost, converse
from atoll.runtimes.roles.memory import RoleMemory
from atoll.runtimes.roles.simulate import SimulatedRoles, simulate_roles
from atoll.testing import check_program

JOB = atoll.RoleJob(PassOn(), ROLES, rounds=3)
AGREED = Agreed({role: one.summary(b"") for role, one in {**rows(), "K": nothing()}.items()}, 3)


def test_a_small_program_obeys_the_laws() -> None:
    run = check_program(PassOn(), rows(), rounds=3)
    x = rows()["A"].x
    assert run.models["B"]["total"].tolist() == x[:6].sum(axis=0).tolist()
    assert run.models["B"]["label"] == 21
    assert int(run.found["count"]) == 6
    assert run.models["A"] == run.models["K"] == {}
    assert run.reason == "all 3 rounds done"


def test_a_round_says_what_it_moved() -> None:
    facts = [f for f in simulate_roles(JOB, rows()).facts if f["what"] == "round"]
    assert [f["asked"] for f in facts] == [7, 4, 4]
    assert all(f["answered"] == f["asked"] and f["bytes_up"] > 0 and f["bytes_down"] > 0 for f in facts)


# --- declarations -----------------------------------------------------------------------------------------------------

ROW = Leaf("float64", (3,))
SEALED = Question("row", Layout({}), Layout({"row": ROW}), ("A",), {"B": "a row"}, "sealed", True, seals={"row": "B"})
OPENED = Question("add", Layout({"row": ROW}), Layout({"done": Leaf("bool", ())}), ("B",), {}, "nothing",
                  opens={"row": Origin("A", "row", "row")})  # fmt: skip


@dataclass(frozen=True)
class Says:
    """A program that only declares."""

    said: tuple[Question, ...]

    @property
    def roles(self) -> dict[str, Role]:
        return {"A": Role("a"), "B": Role("b"), "C": Role("c")}

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        return self.said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ((SEALED, SEALED), "a short name of its own"),
        ((SEALED._replace(name="a/b"),), "a short name of its own"),
        ((SEALED._replace(name="roles.hello"),), "a short name of its own"),
        ((SEALED._replace(roles=("D",)),), "the program has A, B, C"),
        ((SEALED._replace(roles=()),), "the program has A, B, C"),
        ((OPENED._replace(asks=Layout({"t": Leaf("int")})),), "every question has 't' already"),
        ((SEALED._replace(answers=Layout({"row": Leaf("float")})),), "is no array"),
        ((SEALED._replace(seals={}),), "leaf 'row' of its answer travels open"),
        ((SEALED._replace(seals={"row": "A"}),), "another role"),
        ((SEALED._replace(seals={"row": "B", "col": "B"}),), "name a leaf of the answer"),
        ((SEALED._replace(reveals={}),), "say in reveals who learns what"),
        ((SEALED._replace(exposure="hidden"),), "exposure 'hidden'"),
        ((SEALED._replace(times=0),), "asked at least once"),
        ((OPENED,), "A seals no leaf 'row' for B"),
        ((SEALED._replace(seals={"row": "C"}), OPENED), "A seals no leaf 'row' for B"),
        ((SEALED, OPENED._replace(roles=("B", "C"))), "which is for one role"),
        ((SEALED, OPENED._replace(asks=Layout({"row": Leaf("float64", (4,))}))), "another layout"),
    ],
)
def test_declarations_that_contradict_each_other_are_refused(said: tuple[Question, ...], words: str) -> None:
    assert declared(Says((SEALED, OPENED)), AGREED)  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match=words):
        declared(Says(said), AGREED)  # type: ignore[arg-type]


def test_on_the_wire_sealed_leaves_are_bytes_of_known_length() -> None:
    sealed, opened = (on_wire(question, axis=True) for question in (SEALED, OPENED))
    assert sealed.answers.leaves["row"] == Leaf("uint8", (1, 3 * 8 + 28))
    assert opened.asks.leaves["row"] == Leaf("uint8", (3 * 8 + 28,))
    assert opened.answers.leaves["done"] == Leaf("bool", (1,))
    assert {"t", "step", "used"} < opened.asks.leaves.keys()


@pytest.mark.parametrize("leaf", [Leaf("bool", (3,)), Leaf("float64", ()), Leaf("int16", (2, 3)), Leaf("uint8", (7,))])
def test_arrays_are_sealed_as_their_numbers_only(leaf: Leaf) -> None:
    array = (np.arange(np.prod(leaf.shape)) % 2).astype(leaf.dtype).reshape(leaf.shape)
    assert np.array_equal(from_bytes(to_bytes(array, leaf), leaf, "it"), array)
    with pytest.raises(Refused, match="which its layout has not"):
        from_bytes(to_bytes(array, leaf) + b"\0", leaf, "it")


# --- what a program may ask -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking(PassOn):
    """PassOn with a conversation of the test's own."""

    talk: Any = None

    def run(self, who: Any, agreed: Any, world: Any, memory: Any) -> Any:
        return self.talk(who, memory)


async def undeclared(who: Any, memory: Any) -> Any:
    await one(who["A"], "nonsense", t=0)


async def wrong_role(who: Any, memory: Any) -> Any:
    await one(who["B"], "secret", t=0)


async def twice(who: Any, memory: Any) -> Any:
    await one(who["K"], "secret", t=0)
    await one(who["K"], "secret", t=0)


async def twice_at_once(who: Any, memory: Any) -> Any:
    await together(Ask(who["K"], "secret", {"t": 0}), Ask(who["K"], "secret", {"t": 0, "step": 1}))


async def folded(who: Any, memory: Any) -> Any:
    await ask(who["K"], "secret", {"t": 0}, fold=("a",))


async def after_the_end(who: Any, memory: Any) -> Any:
    await checkpoint({"t": 1})
    await one(who["K"], "secret", t=0)
    return {}


async def backwards(who: Any, memory: Any) -> Any:
    await checkpoint({"t": 1})
    await checkpoint({"t": 1})


async def beyond(who: Any, memory: Any) -> Any:
    await checkpoint({"t": 4})


@pytest.mark.parametrize(
    ("talk", "words"),
    [
        (undeclared, "'nonsense' is no question that Asking declares"),
        (wrong_role, "'secret' is asked of role B, and declared for K"),
        (twice, "asked twice at t=0, step=0: number the steps"),
        (twice_at_once, "is asked twice at once"),
        (folded, "ask without fold"),
        (after_the_end, "asked something after its last checkpoint"),
        (backwards, "a checkpoint of round 1 after one of round 1"),
        (beyond, "a checkpoint of round 4 after one of round -1"),
    ],
)
def test_a_program_that_breaks_the_rules_is_stopped(talk: Any, words: str) -> None:
    with pytest.raises(Mismatch, match=words):
        simulate_roles(replace(JOB, program=Asking(talk=talk)), rows())


def test_what_a_role_refuses_ends_a_simulation_with_its_sentence() -> None:
    async def swapped(who: Any, memory: Any) -> Any:
        mask = await one(who["K"], "secret", t=0)
        await one(who["B"], "B.take", t=0, mask=mask["a"])

    with pytest.raises(Mismatch, match=r"role B gave no answer to 'B\.take': 'b' is not what K sealed for B"):
        simulate_roles(replace(JOB, program=Asking(talk=swapped)), rows())


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "data", "words"),
    [
        ("A", columns(np.zeros((6, 3)), ids=range(6)), "role A has 6 rows and role B 7: keep the rows that both have"),
        ("A", columns(np.zeros((7, 3)), ids=range(1, 8)), "have different ids"),
        ("A", columns(np.zeros((7, 3))), "the rows of role A have no ids"),
        ("A", columns(np.zeros((7, 0)), ids=range(7)), "role A brings no columns"),
        ("A", columns(np.zeros((7, 3)), range(7), ids=range(7)), "role A holds columns only, and brings a label"),
        ("A", nothing(), "role A brings no rows"),
        ("B", columns(np.zeros((7, 3)), ids=range(7)), "role B brings no label"),
        ("K", columns(np.zeros((7, 3)), ids=range(7)), "role K holds nothing, and brings 7 rows"),
    ],
)
def test_data_that_does_not_fit_is_refused_before_anything_is_asked(role: str, data: Any, words: str) -> None:
    facts: list[Note] = []
    with pytest.raises(Mismatch, match=words):
        simulate_roles(JOB, {**rows(), role: data}, sinks=(facts.append,))
    assert not [note for note in facts if note.what == "round"]


def test_data_for_a_role_that_is_none_is_refused() -> None:
    with pytest.raises(Mismatch, match="data for role 'Z', and the program has A, B, K"):
        simulate_roles(JOB, {"Z": nothing()})


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
def test_memory_is_provisional_until_the_hub_has_a_checkpoint(tmp_path: Path, kept: bool) -> None:
    folder = tmp_path / "memory" if kept else None
    memory = RoleMemory(folder)
    memory.begin(-1)
    memory.remember({"a": np.arange(3)})
    assert memory.leaves["a"].tolist() == [0, 1, 2]
    assert not memory.settle(-1), "no checkpoint was made, and this is still the round"
    assert memory.settle(0)
    memory.remember({"a": np.arange(4)})
    if folder:
        memory = RoleMemory(folder)  # it was killed
        assert len(memory.leaves["a"]) == 4
    memory.begin(0)
    assert memory.leaves["a"].tolist() == [0, 1, 2], "what the hub has no checkpoint of is forgotten"
    memory.remember({"b": np.array(1.5)})
    if folder:
        memory = RoleMemory(folder)
    memory.begin(5)
    assert {name: leaf.tolist() for name, leaf in memory.leaves.items()} == {"b": 1.5}, "the hub has a checkpoint of it"
    with pytest.raises(Refused, match="the hub goes back to round 3, and this role remembers round 5 only"):
        memory.begin(3)
    memory.begin(-1)
    assert not memory.leaves, "a run that starts again starts from nothing"


def test_a_crash_in_the_middle_of_a_commit_leaves_the_new_or_the_old(tmp_path: Path) -> None:
    memory = RoleMemory(tmp_path)
    memory.begin(-1)
    memory.remember({"a": np.arange(3)})
    provisional = (tmp_path / "provisional.safetensors").read_bytes()
    memory.settle(1)
    (tmp_path / "provisional.safetensors").write_bytes(provisional)  # it was not deleted any more
    (tmp_path / "provisional.safetensors.1.part").write_bytes(b"half of what it remembered when it was killed")
    again = RoleMemory(tmp_path)
    assert not list(tmp_path.glob("*.part"))
    again.remember({"a": np.arange(5)})
    again.begin(1)
    assert again.leaves["a"].tolist() == [0, 1, 2]


def test_a_role_whose_folder_is_lost_says_so(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no memory of the run, which has done 3 rounds"):
        RoleMemory(tmp_path / "new").begin(3)


def test_a_role_remembers_no_more_than_it_may(tmp_path: Path) -> None:
    memory = RoleMemory(tmp_path, max_bytes=100)
    memory.begin(-1)
    with pytest.raises(Refused, match="max_memory = 100"):
        memory.remember({"a": np.zeros(100)})
    assert not memory.leaves


def test_secrets_are_never_written_and_end_with_the_session(tmp_path: Path) -> None:
    run = simulate_roles(replace(JOB, rounds=2), rows(), out=tmp_path)
    assert run.folder
    for path in run.folder.rglob("*"):
        assert path.is_dir() or b"secret/mask" not in path.read_bytes()
    cast = Cast().meet().start()
    cast.ask("A", "row")
    cast.meet()
    with pytest.raises(Exception, match="secret/mask"):
        cast.ask("A", "row")


# --- sessions that are lost -------------------------------------------------------------------------------------------


class Losing(SimulatedRoles):
    """A simulation in which one answer, by its number, is lost and a session with it."""

    lose: set[int]
    count: int = 0
    again: int = 0

    def ask(self, ask: Ask) -> Any:
        found = super().ask(ask)
        self.count += 1
        if self.count in self.lose:
            raise Lost("A", ask.what)
        return found

    def together(self, asks: tuple[Ask, ...]) -> Any:
        return tuple(self.ask(ask) for ask in asks)

    def lost(self, lost: Lost) -> None:
        self.again += 1


@pytest.mark.parametrize("lose", [{1}, {2}, {3}, {4}, {5}, {6}, {9}, {13, 15, 17}, {17}, {18}, set(range(2, 12))])
def test_a_session_that_is_lost_at_any_moment_changes_nothing(lose: set[int]) -> None:
    held = {**rows(), "K": nothing()}
    roles = Losing(JOB, held, b"job".ljust(32), Journal())
    roles.lose = lose
    ended = converse(roles.setup, roles, None)
    assert roles.again == len(lose)
    assert roles.models["B"]["total"].tolist() == rows()["A"].x[:6].sum(axis=0).tolist()
    assert int(ended.found["count"]) == 6
    notes = [f for f in roles._reasons._journal.facts if f["what"] == "round"]  # type: ignore[attr-defined]
    assert [f["round"] for f in notes] == [1, 2, 3], "a round that is started again is noted once"


def test_a_solo_handler_adds_and_forgets_leaves() -> None:
    from atoll.core.party import Group, Remembered
    from atoll.core.world import World

    def answer(body: Any, me: Any) -> Any:
        return {"a": {"b": me.x.sum()}}, {"new": np.array(1), "old": None}

    memory = Remembered(np.ones(1, bool), {"old": np.zeros((1, 2)), "kept": np.ones((1, 2))})
    data = columns([[1.0, 2.0]])
    group = Group(np.array([3]), data, np.array([0]), World(), 0, "A", memory=memory)
    reply, after = Solo(answer, "A")({}, group)
    assert reply["a/b"].tolist() == [3.0]
    assert {name: leaf.tolist() for name, leaf in after.items()} == {"new": [1], "kept": [[1.0, 1.0]]}


def test_a_program_may_end_before_its_last_round() -> None:
    async def short(who: Any, memory: Any) -> Any:
        await checkpoint({"t": 2})
        return {}

    run = simulate_roles(replace(JOB, program=Asking(talk=short)), rows())
    assert run.reason == "the program ended after round 2"


def test_a_conversation_settles_nothing_itself() -> None:
    held = {**rows(), "K": nothing()}
    roles = SimulatedRoles(JOB, held, b"job".ljust(32), Journal())

    async def settling() -> None:
        from atoll.core.effects import settle

        await settle(np.zeros(3))

    with pytest.raises(Mismatch, match="does not settle"):
        drive(settling(), Conversation(roles.setup, roles, {}, None))
