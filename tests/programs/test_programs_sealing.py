"""What passes between roles is sealed: a hub that swaps, replays, changes or makes up is refused by real code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles_cast import ROLES, Cast, PassOn, rows

from atoll.core.program import Agreed, Me
from atoll.core.question import Fault, Layout, Leaf, Origin, Question, Range
from atoll.core.tree import Tree
from atoll.crypto.keys import Identity, Pair, Refused
from atoll.data.roles import columns
from atoll.job.roles import RoleJob
from atoll.programs.roles import read_summary, write_summary
from atoll.programs.session import Present, Sealing, read_hello, session_id, write_hello
from atoll.runtimes.local.worker import PartyFailed
from atoll.runtimes.roles.side import NO_SESSION

MEANT = "was changed, replayed or meant for somebody else"


def test_an_honest_hub_is_answered() -> None:
    cast = Cast().meet().start()
    row = cast.ask("A", "row")
    assert cast.ask("B", "add", **row)["count"] == 1
    assert cast.sides["B"].model["total"].tolist() == [0.0, 1.0, 2.0]


def test_a_hub_cannot_hand_a_leaf_to_another_role() -> None:
    cast = Cast().meet()
    mask = cast.ask("K", "secret")
    cast.ask("A", "A.take", mask=mask["a"])
    with pytest.raises(Refused, match=MEANT):
        cast.ask("B", "B.take", mask=mask["a"])


def test_a_hub_cannot_replay_a_leaf_in_another_round_or_step() -> None:
    cast = Cast().meet().start()
    row, next_round, next_step = cast.ask("A", "row"), cast.ask("A", "row", t=1), cast.ask("A", "row", step=1)
    for t, step, sent in ((1, 0, row), (0, 1, row), (0, 0, next_round), (0, 0, next_step)):
        with pytest.raises((Refused, Fault)):
            cast.ask("B", "add", t=t, step=step, row=sent["row"], at=sent["at"])
    with pytest.raises(Refused, match=f"'row' is not what A sealed for B in answer to 'row' of round 1: it {MEANT}"):
        cast.ask("B", "add", row=next_round["row"], at=row["at"])
    assert cast.ask("B", "add", **row)["count"] == 1, "what was refused has changed nothing"


def test_a_hub_cannot_replay_a_leaf_of_another_session() -> None:
    cast = Cast().meet().start()
    row = cast.ask("A", "row")
    cast.meet().start()
    with pytest.raises(Refused, match=MEANT):
        cast.ask("B", "add", **row)


def test_a_hub_cannot_pass_one_leaf_off_as_another() -> None:
    """Both masks have the same size and reader here; only their names differ."""
    pairs = {role: Pair.new() for role in "AB"}
    present = {role: Present(role, role, pair.public, rows()["A"].summary(b""), b"") for role, pair in pairs.items()}
    a, b = (Sealing.of(b"job", b"session", role, pairs[role], present) for role in "AB")
    box = a.seal(b"text", reader="B", question="q", leaf="one", t=3, step=1)
    assert b.open(box, origin=Origin("A", "q", "one"), t=3, step=1) == b"text"
    for origin, t, step in (
        (Origin("A", "q", "two"), 3, 1), (Origin("A", "p", "one"), 3, 1), (Origin("A", "q", "one"), 2, 1),
        (Origin("A", "q", "one"), 3, 0),
    ):  # fmt: skip
        with pytest.raises(Refused, match=MEANT):
            b.open(box, origin=origin, t=t, step=step)
    with pytest.raises(Refused, match=MEANT):  # nor back to who sealed it
        a.open(box, origin=Origin("B", "q", "one"), t=3, step=1)
    for other in (Sealing.of(b"another", b"session", "B", pairs["B"], present),
                  Sealing.of(b"job", b"another", "B", pairs["B"], present)):  # fmt: skip
        with pytest.raises(Refused, match=MEANT):
            other.open(box, origin=Origin("A", "q", "one"), t=3, step=1)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_sealed_leaf_with_any_bit_changed_is_refused(data: st.DataObject) -> None:
    cast = Cast().meet().start()
    row = cast.ask("A", "row")
    box = bytearray(np.asarray(row["row"]).tobytes())
    box[data.draw(st.integers(0, len(box) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Refused, match=MEANT):
        cast.ask("B", "add", row=np.frombuffer(bytes(box), np.uint8), at=row["at"])


def test_a_hub_cannot_answer_for_a_role() -> None:
    cast = Cast()
    hellos = cast.hellos()
    job = b"the job's hash".ljust(32)
    summary = rows()["A"].summary(job)
    forged = np.frombuffer(write_hello(Identity.new(), job, "A", "bank", Pair.new(), summary), np.uint8)
    with pytest.raises(Refused, match="the hello of role A was not signed by bank, for this job"):
        cast.meet({**hellos, "A": forged})
    with pytest.raises(Refused, match="another role's or another party's"):
        cast.meet({**hellos, "B": hellos["A"]})


def test_a_hello_for_another_job_is_worth_nothing() -> None:
    me, pair = Identity.new(), Pair.new()
    said = write_hello(me, b"one job", "A", "bank", pair, rows()["A"].summary(b""))
    assert read_hello(said, "A", "bank", b"one job", me.public).key == pair.public
    with pytest.raises(Refused, match="not signed"):
        read_hello(said, "A", "bank", b"another job", me.public)


def test_a_hello_of_an_earlier_start_is_refused_by_whom_it_is_of() -> None:
    cast = Cast()
    old = cast.hellos()
    new = cast.hellos()
    cast.sides["B"].answer("roles.meet", {"t": 0, "step": 0, "used": -1, "hellos": {**new, "A": old["A"]}})
    with pytest.raises(Refused, match="another hello of this role than its last"):
        cast.sides["A"].answer("roles.meet", {"t": 0, "step": 0, "used": -1, "hellos": {**new, "A": old["A"]}})


def test_a_hub_cannot_lie_about_what_others_bring() -> None:
    """What a role brings is signed with its key, and part of the session."""
    me, pair = Identity.new(), Pair.new()
    said = write_hello(me, b"job", "A", "bank", pair, rows()["A"].summary(b""))
    more = write_hello(Identity.new(), b"job", "A", "bank", pair, rows(8)["A"].summary(b""))
    one, other = (read_hello(raw, "A", "bank") for raw in (said, more))
    assert session_id(b"job", {"A": one}, {"bank": b"k"}) != session_id(b"job", {"A": other}, {"bank": b"k"})
    with pytest.raises(Refused, match="not signed"):
        read_hello(more, "A", "bank", b"job", me.public)


def test_summaries_come_back_as_they_were_and_damaged_ones_are_refused() -> None:
    summary = columns(np.ones((4, 2)), [1, 2, 3, 4], ids="abcd", names=("age", "größe")).summary(b"salt")
    raw = write_summary(summary)
    assert read_summary(raw, "A") == summary
    for bad in (raw[:-1], raw + b"\0", b"", write_summary(summary._replace(samples=-1)),
                write_summary(summary._replace(names=("one",))), write_summary(summary._replace(names=("a", "b\n"))),
                write_summary(summary._replace(ids=b"short"))):  # fmt: skip
        with pytest.raises(Refused):
            read_summary(bad, "A")


def test_an_answer_is_worked_out_once() -> None:
    calls: list[str] = []

    def counting(role: str, work: Any) -> Any:
        def counted(chunk: Any, body: Any) -> Any:
            calls.append(chunk.what)
            return work(chunk, body)

        return counted

    cast = Cast(watch=counting).meet().start()
    row = cast.ask("A", "row")
    again = cast.ask("A", "row")
    assert all(np.array_equal(row[name], again[name]) for name in row), "asked again, a role sends the same bytes"
    assert cast.ask("B", "add", **row)["count"] == cast.ask("B", "add", **row)["count"] == 1
    assert calls.count("row") == calls.count("add") == 1
    other = cast.ask("A", "row", step=1)
    with pytest.raises(Refused, match="comes again with something else in it"):
        cast.ask("B", "add", **other)


def test_a_round_that_is_done_is_not_asked_again() -> None:
    cast = Cast().meet().start()
    row = cast.ask("A", "row")
    cast.ask("A", "row", t=1, used=1)
    with pytest.raises(Refused, match="was answered, and the round is done"):
        cast.ask("A", "row", used=1)
    assert row


def test_without_a_session_nothing_is_answered() -> None:
    cast = Cast()
    with pytest.raises(Refused, match=NO_SESSION):
        cast.ask("A", "row")
    cast.meet().start()
    cast.sides["A"].answer("roles.hello", {"t": 0, "step": 0, "used": -1})
    with pytest.raises(Refused, match=NO_SESSION):
        cast.ask("A", "row")


def test_a_role_knows_its_own_questions_only() -> None:
    cast = Cast().meet().start()
    for role, what in (("A", "add"), ("B", "row"), ("K", "row"), ("A", "nonsense")):
        with pytest.raises(Refused, match=f"is no question to role {role}"):
            cast.ask(role, what)


def test_a_question_with_more_or_less_in_it_is_refused() -> None:
    cast = Cast().meet().start()
    with pytest.raises(Fault, match="missing"):
        cast.ask("B", "add")
    with pytest.raises(Fault, match="no leaf of the layout"):
        cast.ask("A", "row", more=np.zeros(3))
    with pytest.raises(Fault):
        cast.ask("A", "row", t=-1)


def test_roles_of_different_jobs_do_not_meet() -> None:
    """A hub that tells two parties two jobs: their keys would not fit, and no hello is good for both."""
    one, other = Cast(), Cast(RoleJob(PassOn(2.0), ROLES, rounds=3))
    with pytest.raises(Refused, match="not signed"):
        one.meet({**one.hellos(), "B": other.hellos()["B"]})


@dataclass(frozen=True)
class Bounded(PassOn):
    """Rows that are too long for their layout: what is refused then is known to their owner only."""

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        return tuple(
            q._replace(answers=Layout({**q.answers.leaves, "row": Leaf("float64", (3,), weight=Range(0, 1))}))
            if q.name == "row" else q for q in super().questions(agreed)
        )  # fmt: skip


def test_what_is_wrong_with_an_answer_is_not_told_to_the_hub() -> None:
    """A sentence about a layout may hold numbers; a role sends Refused and Fault to the hub, and nothing else."""
    cast = Cast(RoleJob(Bounded(), ROLES, rounds=3)).meet().start()
    with pytest.raises(PartyFailed, match="role A, 'row': leaf 'row' has weights"):
        cast.ask("A", "row")


class Forgetful(PassOn):
    """A that forgets the only thing it remembers."""

    def _row(self, body: Tree, me: Me) -> tuple[Tree, Mapping[str, Any]]:
        return super()._row(body, me)[0], {"secret/mask": None}


def test_a_role_that_forgets_all_has_forgotten_it() -> None:
    cast = Cast(RoleJob(Forgetful(), ROLES, rounds=3)).meet().start()
    cast.ask("A", "row")
    with pytest.raises(PartyFailed, match="KeyError: 'secret/mask'"):
        cast.ask("A", "row", step=1)
