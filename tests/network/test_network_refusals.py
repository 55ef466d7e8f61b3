"""What a party, an edge and a server refuse, each by itself: real party code, with nobody on the line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from test_network_hub import DATA, Wired, wired  # noqa: F401

import atoll
from atoll.core.errors import Unwritable
from atoll.core.question import Layout, Leaf, Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch
from atoll.crypto.keys import Identity, Refused
from atoll.data import Column, TableSchema, build
from atoll.data.errors import BadData
from atoll.job.assemble import assemble
from atoll.job.file import dumps, to_table
from atoll.runtimes.network.edge import Edge
from atoll.runtimes.network.messages.calls import NOT_ALLOWED, Times
from atoll.runtimes.network.messages.envelope import AnswerHead, Hello, QuestionHead, Welcome, write_envelope
from atoll.runtimes.network.messages.payload import Payload, header_of
from atoll.runtimes.network.messages.trees import write_tree
from atoll.runtimes.network.party.assess import data_of
from atoll.runtimes.network.party.audit import AuditLog
from atoll.runtimes.network.party.budget import JobBudget
from atoll.runtimes.network.party.join import Changed, Declined, Party
from atoll.runtimes.network.party.join_roles import RoleDesk
from atoll.runtimes.network.party.line import welcomed
from atoll.runtimes.network.party.policy import BadPolicy, Manifest, NotAllowed, Policy
from atoll.runtimes.network.party.roles import RoleSession, role_of
from atoll.runtimes.network.party.session import Assessment, Session
from atoll.runtimes.network.party.spending import AccountBroken, DataAccount
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.transport import PartyTransport
from atoll.runtimes.network.trust.tls import Insecure, ServerTLS, Unknown
from atoll.runtimes.roles.memory import RoleMemory
from atoll.runtimes.roles.side import NO_SESSION, RoleContext

RECIPE = {"use": "digits", "clients": 3}
JOB = atoll.Job(atoll.FedAvg(atoll.models.softmax(), lr=0.5), atoll.All(), rounds=5)
ASKED = Question("train/contribute", Layout({"x": Leaf("float32", (3,))}), Layout({"y": Leaf("float32", (1, 3))}))


class Trained(Party):
    """A party whose training has a known result."""

    found: Mapping[str, Array] = {"y": np.ones((1, 3), np.float32)}
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def _train(self, what: str, question: Tree) -> dict[str, Array]:
        self.meanwhile()
        return dict(self.found)


@contextmanager
def party_of(folder: Path, policy: Policy, sides: Any = None) -> Iterator[Trained]:
    assessed = Assessment(Manifest("", "fedavg", "", 3, 5, 3, "sum"), "", {ASKED.name: ASKED}, {}, 9)
    budget = JobBudget(DataAccount(folder / "accounts", "wards"), policy, assessed, "a job")
    with (
        AuditLog(folder / "audit.jsonl") as audit,
        closing(PartyTransport("127.0.0.1:1", Insecure("ada"), folder=folder, times=Times(patience=0.1))) as line,
    ):
        welcome = Welcome("run", 0, "a job", bytes(32), {})
        session = Session(policy, "a job", 0, 3, 10)
        yield Trained(line, b"", welcome, session, budget, sides or {}, folder, audit, Times(), lambda _: None)


def asked(party: Party, what: str = ASKED.name, body: Tree | None = None) -> AnswerHead:
    text = write_tree({"x": np.zeros(3, np.float32)} if body is None else body)
    header = header_of("question", "run/1", text)
    head = QuestionHead("run", 1, what, 0, 30.0, header.size, header.sha256)
    return party._answer(head, Payload(header, BytesIO(text)))[0]


def test_a_question_of_the_job_is_answered_and_no_other(tmp_path: Path) -> None:
    with party_of(tmp_path, Policy(allow_plain=True)) as party:
        assert not asked(party).declined
        assert "'train/spy' is no question of this job" in asked(party, "train/spy").declined
        assert "has at most" in asked(party, body={"x": np.zeros(3000, np.float32)}).declined


def test_nothing_is_answered_outside_of_the_hours(tmp_path: Path) -> None:
    soon = datetime.now() + timedelta(hours=2)
    hours = f"{soon:%H:%M}-{soon + timedelta(minutes=1):%H:%M}"
    with party_of(tmp_path, Policy(allow_plain=True, hours=hours)) as party:
        said = asked(party)
    assert (said.declined, said.code) == (f"this party takes part at {hours} only", NOT_ALLOWED)


def test_bytes_beyond_the_limit_are_not_moved(tmp_path: Path) -> None:
    with party_of(tmp_path, Policy(allow_plain=True, max_bytes=100)) as party:
        party._move(100)
        with pytest.raises(NotAllowed, match=r"max_bytes = 100, and with this all jobs on .* have moved 101"):
            party._move(1)


def test_what_was_worked_out_for_a_server_that_has_changed_does_not_leave(tmp_path: Path) -> None:
    with party_of(tmp_path, Policy(allow_plain=True)) as party:
        party.meanwhile = lambda: vars(party).update(_changed=True)
        with pytest.raises(Changed):
            asked(party)
        with pytest.raises(Changed):
            party._turn()
        assert "left" not in (tmp_path / "audit.jsonl").read_text()


def test_an_evaluation_that_the_job_does_not_have_is_refused(tmp_path: Path) -> None:
    with party_of(tmp_path, Policy(allow_plain=True)) as party, pytest.raises(NotAllowed, match="how well models do"):
        party._budget.allow("evaluate", evaluates=True)


class Lies:
    """The line to a server whose job is not the one that its hash names."""

    def hello(self, said: bytes) -> bytes:
        return write_envelope(Welcome("run", 0, "a job", bytes(32), {}))


def test_a_job_that_its_hash_does_not_name_is_refused() -> None:
    with pytest.raises(Refused, match="the job is not the one that its hash names"):
        welcomed(Lies(), b"", Policy())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [("parts = 3", "a table of packages"), ('parts = { "" = "x" }', "no name of a package"),
     ('parts = { mine = "abc" }', "64 digits")],
)  # fmt: skip
def test_parts_of_a_policy_have_names_and_digests(text: str, said: str) -> None:
    with pytest.raises(BadPolicy, match=said):
        Policy.parse(text)


def test_an_account_of_another_format_is_not_read(tmp_path: Path) -> None:
    account = DataAccount(tmp_path, "wards")
    body = b'{"format": 2, "given": []}'
    account.path.write_bytes(sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(AccountBroken, match="is not what was written"):
        account.read()


def test_a_store_needs_a_disk_that_can_hold_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite without shared memory, as on some network disks, has no write-ahead log."""
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, **more: connect(f"file:{path}?vfs=unix-none", uri=True, **more)
    )
    with pytest.raises(Unwritable, match=r"server\.sqlite"):
        Store(tmp_path)


ILL = Column("ill", values=("no", "yes"))


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (TableSchema((Column("age"), ILL), Column("dead", values=("no", "yes"))), "its target is 'dead'"),
        (TableSchema((Column("age"),), Column("ill")), "column 'ill' holds numbers, and the job expects the classes"),
        (TableSchema((Column("age"),), Column("ill", values=("no", "maybe"))), "column 'ill' has class 'maybe'"),
    ],
)
def test_another_target_is_refused(theirs: TableSchema, said: str) -> None:
    with pytest.raises(BadData, match=said):
        TableSchema((Column("age"),), ILL).refuse(theirs, "the data of ben")


def test_a_job_states_a_feature_and_two_classes() -> None:
    with pytest.raises(BadData, match="state at least one feature"):
        build({"use": "schema", "features": [], "target": {"name": "ill", "values": ["no", "yes"]}, "clients": 3})


class Hides:
    """The client side of a hidden sum that takes the vector at once."""

    def answer(self, step: str, question: Tree, vector: Callable[[Tree], Array]) -> Tree:
        return {"y": vector(question)[None]}


@pytest.mark.parametrize("finite", [True, False])
def test_a_vector_that_is_not_finite_enters_no_hidden_sum(tmp_path: Path, finite: bool) -> None:
    with party_of(tmp_path, Policy(allow_plain=True), {"train": Hides()}) as party:
        party.found = {"vector": np.ones((1, 3), np.float32), "finite": np.array([finite])}
        assert asked(party).declined == ("" if finite else "the numbers of this party are not finite")


# --- roles ---

ROLES = """
program = { use = "joint_moments" }
rounds = 1
[roles]
A = "bank"
B = "shop"
C = "notary"
"""


def test_a_party_plays_no_role_that_the_job_does_not_give_it() -> None:
    policy = Policy(data={"path": "ledger.csv", "id": "id"})
    assert role_of(RoleSession(policy, ROLES, "shop", 0))[1] == "B"
    with pytest.raises(NotAllowed, match="the job gives no role to mallory"):
        role_of(RoleSession(policy, ROLES, "mallory", 0))
    with pytest.raises(Refused, match="this job trains a method"):
        role_of(RoleSession(policy, dumps(to_table(JOB, RECIPE, 0)), "shop", 0))


def test_a_role_answers_its_own_questions_after_it_has_met_the_others(tmp_path: Path) -> None:
    roles, me = {"A": "bank", "B": "shop"}, Identity.new()
    context = RoleContext("A", 0, me, bytes(32), roles, {"bank": me.public, "shop": bytes(32)}, None, 1)  # type: ignore[arg-type]
    session = RoleSession(Policy(), ROLES, "bank", 0)
    desk = RoleDesk(session, context, RoleMemory(tmp_path, 9), lambda _: None, tmp_path, lambda: None)
    with pytest.raises(Declined, match=NO_SESSION):
        desk.question("A.rows")
    desk._questions = {"A.rows": ASKED}
    assert desk.question("A.rows") is ASKED
    with pytest.raises(Declined, match=r"'B\.rows' is no question to role A in this job"):
        desk.question("B.rows")


# --- a party's own data, and a server's view of it ---


def test_labels_beyond_the_classes_of_a_job_are_refused() -> None:
    session = Session(Policy(data={**RECIPE, "party": 0}), dumps(to_table(JOB, RECIPE, 0)), 0, 3, 10)
    assert data_of(session).classes == 10
    with pytest.raises(Mismatch, match="labels go up to 9, and the job has 7 classes"):
        data_of(Session(session.policy, session.job, 0, 3, 7))


def test_data_that_means_something_else_is_refused_and_named(wired: Wired) -> None:  # noqa: F811
    with pytest.raises(Refused, match="ben holds other data than the job is about: its samples must be x float32"):
        wired.hub.hello("ben", write_envelope(Hello("ben", 5, Layout({}))))
    wired.hub._schema = TableSchema((Column("age"),), Column("ill", values=("no", "yes")))
    with pytest.raises(Refused, match="ben holds data whose columns have no names"):
        wired.hub.hello("ben", write_envelope(Hello("ben", 5, DATA)))
    theirs = TableSchema((Column("size"),), Column("ill", values=("no", "yes")))
    with pytest.raises(Refused, match="the data of ben: there is no column 'age'"):
        wired.hub.hello("ben", write_envelope(Hello("ben", 5, DATA, columns=theirs)))
    assert [note.facts["party"] for note in wired.notes.notes if note.what == "refused"] == ["ben"] * 3
    assert wired.hub.online().tolist() == [0, 2]


class NoCertificate:
    """A call over a line on which nobody has shown a certificate."""

    def auth_context(self) -> dict[str, Any]:
        return {}


def test_a_caller_without_a_certificate_has_no_name(federation: Any) -> None:
    with pytest.raises(Unknown, match="a caller without a certificate"):
        ServerTLS(federation.hub, federation.roster).name(NoCertificate())  # type: ignore[arg-type]


# --- edges ---


def test_an_edge_whose_parties_are_away_gives_nothing(wired: Wired) -> None:  # noqa: F811
    """No sum of nobody is passed on, and no figures."""
    made = assemble(JOB, build({**RECIPE, "test": 0.2}))
    wired.hub.declare(made.questions(3))
    edge = Edge.__new__(Edge)
    edge._level = SimpleNamespace(hub=wired.hub, made=made)  # type: ignore[assignment]
    for name in wired.lines:
        wired.hub.goodbye(name)
    with pytest.raises(Declined, match="no party of this edge has evaluated"):
        edge._evaluated({"t": 0})
    exchange = made.program.exchanges["train"]
    body = {"t": np.int64(0), "broadcast": {}}
    with pytest.raises(Declined, match="0 parties of this edge answered"):
        edge._gathered(exchange, exchange.codec, body)
