"""A party does not trust its server: it bounds what it gives and looks at what it is asked."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

import atoll
from atoll.core.effects import Ask, Note
from atoll.core.method import Contribute, Contribution, Population
from atoll.core.party import Group
from atoll.core.question import Layout, Leaf, Question
from atoll.core.tree import Tree, flatten, leaves
from atoll.core.world import World
from atoll.crypto import secagg
from atoll.data import build
from atoll.job.assemble import Assembled, agreement_of, assemble, summary_of
from atoll.job.file import dumps, to_table
from atoll.programs.federate import question_of
from atoll.runtimes.local.worker import Chunk, PartyFailed, Worker
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.messages.envelope import QuestionHead, Welcome
from atoll.runtimes.network.messages.payload import Payload, header_of
from atoll.runtimes.network.messages.trees import write_tree
from atoll.runtimes.network.party.answers import LastAnswers
from atoll.runtimes.network.party.assess import assess, worker_of
from atoll.runtimes.network.party.audit import AuditLog, verify
from atoll.runtimes.network.party.budget import JobBudget
from atoll.runtimes.network.party.join import Party, join
from atoll.runtimes.network.party.policy import Manifest, NotAllowed, Policy
from atoll.runtimes.network.party.roles import RoleSession
from atoll.runtimes.network.party.session import Assessment, Session
from atoll.runtimes.network.party.spending import DataAccount
from atoll.runtimes.network.server.hub import Hub
from atoll.runtimes.network.server.serve import remote
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trust.tls import Insecure

RECIPE = {"use": "digits", "clients": 3}
JOB = atoll.Job(atoll.FedAvg(atoll.models.softmax(), lr=0.5), atoll.All(), rounds=5)
TEXT = dumps(to_table(JOB, RECIPE, 0))
WHAT = "train/contribute"


def body_of(made: Assembled) -> dict[str, Any]:
    """The first question of a job."""
    program = made.program
    state = program.method.init(program.world, Population(program.sizes))
    return dict(question_of(program.method, state, 0, {}))


def length_of(vector: Any) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for _, leaf in leaves(vector))))


def test_no_vector_leaves_longer_than_the_party_says() -> None:
    made = assemble(JOB, build(RECIPE))
    method, body = made.program.method, body_of(made)
    group = Group(np.array([1]), made.splits["train"], np.array([1]), made.program.world, 0)
    given = method.client_update(body["broadcast"], group)
    free, weight = length_of(given.vector), given.weight[0]
    assert free > 0.1
    for most in (0.1, 1e6):
        policy = Policy(allow_plain=True, max_norm=most, data={**RECIPE, "party": 1})
        worker = worker_of(Session(policy, TEXT, 1, 3, 10, World.rehearsed))
        row = worker.answer(Chunk(WHAT, 0, np.array([1]), None, ()), body).each["vector"][0]
        assert row[-1] == weight  # the last number is the weight, and the one before it the training loss
        assert np.linalg.norm(row[:-2] / row[-1]) == pytest.approx(min(most, free), rel=1e-4)


class Remembers(atoll.FedAvg):
    """Federated averaging whose parties remember what they gave."""

    def client_update(self, broadcast: Tree, group: Group) -> Contribution:
        given = super().client_update(broadcast, group)
        return given._replace(memory={"last": flatten(given.vector, self.phases["train"].schema)})

    @property
    def remembers(self) -> bool:
        return True


def test_what_is_remembered_is_not_shortened() -> None:
    """A limit of the party's own is on what leaves; what stays with it is as the method left it."""
    made = assemble(replace(JOB, method=Remembers(atoll.models.softmax(), lr=0.5)), build(RECIPE))
    group = Group(np.array([1]), made.splits["train"], np.array([1]), made.program.world, 0)
    handler, body = made.handlers[WHAT], body_of(made)
    assert isinstance(handler, Contribute)
    free, kept = handler(body, group)
    short, same = replace(handler, max_norm=0.1)(body, group)
    assert np.linalg.norm(kept["method/last"]) > 0.2
    assert np.array_equal(same["method/last"], kept["method/last"])
    row = short["vector"][0]
    assert np.linalg.norm(row[:-2] / row[-1]) == pytest.approx(0.1, rel=1e-4)
    assert not np.array_equal(free["vector"], short["vector"])


class Notes:
    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def checkpoint(self, memory: object) -> None:
        pass


@pytest.mark.slow
def test_a_question_that_is_not_of_the_job_is_declined_and_nothing_is_trained(tmp_path: Path) -> None:
    data, times = build(RECIPE), Times(wait=2.0, answer=60.0, silence=10.0, grace=0.2, patience=30.0)
    made = assemble(JOB, remote(data, [9] * 3), world=World.real(0))
    body = body_of(made)
    broadcast = body["broadcast"]
    message = Layout({"message": Leaf("uint8", (9,), upto=True)})
    masked = Question("train/secure.masked", Layout({}), message, exposure="masked", contributes=True)
    questions = {**made.questions(3), masked.name: masked}
    said: list[str] = []
    with Store(tmp_path) as store:
        store.enrol([("ada", "key")])
        store.create("run")
        store.move("run", "running")
        notes = Notes()
        hub = Hub(
            "run", store, notes, Worker({}, {}, World.real(0)), questions, data=summary_of(data).sample, classes=10,
            job=TEXT, manifest=agreement_of(TEXT), roster=lambda: {m.name: m.key for m in store.members()}, times=times,
        )  # fmt: skip
        server = ServerTransport("127.0.0.1:0", Insecure("server"), hub, times=times, folder=tmp_path)
        address = server.start()
        policy = Policy(allow_plain=True, data={**RECIPE, "party": 0})
        ended: list[str] = []
        party = threading.Thread(
            target=lambda: ended.append(
                join(address, Insecure("ada"), "ada", policy, tmp_path / "ada", times=times, say=said.append)
            )
        )
        party.start()
        hub.wait_for(1, 60)
        params = np.asarray(broadcast["params"])
        broken, shorter = {**broadcast, "params": params * np.float32(np.nan)}, {**broadcast, "params": params[:-1]}
        for what, asked in (
            (WHAT, {**body, "broadcast": broken}),
            (WHAT, {**body, "broadcast": shorter}),
            (WHAT, {**body, "more": np.zeros(3)}),
            (WHAT, {**body, "more": np.zeros(2**20)}),  # more than is read into memory
            ("train/secure.masked", {"t": 0, "message": np.zeros(3, np.uint8)}),
        ):
            assert not len(hub.ask(Ask(np.arange(1), what, asked)))
        good = hub.ask(Ask(np.arange(1), WHAT, body))
        hub.end("the test is over")
        party.join(60)
        server.stop()
    reasons = [note.facts["why"] for note in notes.notes if note.what == "declined"]
    expected = ("not finite", "shape", "no leaf", "has at most", "no question of this job")
    for words, why in zip(expected, reasons, strict=True):
        assert words in why
    assert good.parties.tolist() == [0]
    assert ended == ["the test is over"]
    lines = [json.loads(line) for line in (tmp_path / "ada" / "audit.jsonl").read_text().splitlines()]
    assert verify(tmp_path / "ada" / "audit.jsonl") == len(lines)
    assert [line["what"] for line in lines] == ["hello", "joined", *["declined"] * 5, "left"]
    assert lines[0]["samples"] == build(RECIPE).train.sizes[0]
    assert [line["why"] for line in lines[2:7]] == reasons
    assert (lines[-1]["asked"], lines[-1]["contributes"]) == (WHAT, True)


def test_a_hidden_sum_among_keys_that_nobody_gave_this_party_is_refused(tmp_path: Path) -> None:
    from atoll.runtimes.network.messages.envelope import Welcome
    from atoll.runtimes.network.party.assess import assess
    from atoll.runtimes.network.party.join import sides_of
    from atoll.runtimes.network.trust.roster import line_of, new_key, peer_of
    from atoll.runtimes.network.trust.tls import PartyTLS

    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Ring())
    text = dumps(to_table(atoll.Job(JOB.method, atoll.All(), atoll.Channel(stages, atoll.SecureSum())), RECIPE, 7))
    session = Session(Policy(data={**RECIPE, "party": 0}), text, 0, 3, 10)
    assessed = assess(session, "", "")
    assert assessed.seed == 7  # what is drawn publicly in a hidden sum, the server draws too
    keys = {name: new_key(tmp_path, name) for name in ("ada", "ben", "cleo")}
    side = PartyTLS(keys["ada"], peer_of(line_of(keys["ben"])))
    welcome = Welcome("run", 0, text, bytes(32), {}, {"ada": 0, "ben": 1, "cleo": 2}, 10)
    roster = tmp_path / "roster"

    def sit(policy: Policy, told: Welcome = welcome, credentials: Any = side) -> Any:
        return sides_of(policy, told, assessed, credentials, "ada", tmp_path, session)

    with pytest.raises(NotAllowed, match="name the file of their lines"):
        sit(Policy())
    with pytest.raises(NotAllowed, match="cannot read"):
        sit(Policy(roster=str(roster)))
    roster.write_text("".join(f"{line_of(key)}\n" for key in keys.values()))
    assert set(sit(Policy(roster=str(roster)))) == {"train"}
    with pytest.raises(NotAllowed, match="--key instead of --insecure"):
        sit(Policy(roster=str(roster)), credentials=Insecure("ada"))
    with pytest.raises(NotAllowed, match="somebody else's"):
        sit(Policy(roster=str(roster)), Welcome("run", 1, text, bytes(32), {}, {"ada": 0, "ben": 1}, 10))
    roster.write_text(f"{line_of(keys['ben'])}\n")
    with pytest.raises(NotAllowed, match="another key for ada than its own, or none"):
        sit(Policy(roster=str(roster)))


def test_batches_are_cut_from_the_parties_that_were_there_when_this_party_agreed(tmp_path: Path) -> None:
    """A server that comes back with another number for somebody would cut other batches."""
    from atoll.runtimes.network.messages.envelope import Welcome
    from atoll.runtimes.network.party.assess import assess
    from atoll.runtimes.network.party.join import sides_of
    from atoll.runtimes.network.trust.roster import line_of, new_key, peer_of
    from atoll.runtimes.network.trust.tls import PartyTLS

    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Ring())
    job = atoll.Job(JOB.method, atoll.Batches(4, 2), atoll.Channel(stages, atoll.SecureSum()))
    text = dumps(to_table(job, RECIPE, 0))
    names = ("ada", "ben", "cleo", "dan")
    keys = {name: new_key(tmp_path, name) for name in names}
    roster = tmp_path / "roster"
    roster.write_text("".join(f"{line_of(key)}\n" for key in keys.values()))
    policy = Policy(data={**RECIPE, "party": 0}, roster=str(roster), whole_batches=2)
    session = Session(policy, text, 0, 4, 10)
    assessed = assess(session, "", "")
    assert sorted(who for batch in assessed.batches for who in batch) == [0, 1, 2, 3]
    assert assessed.manifest.batch == 2
    side, members = PartyTLS(keys["ada"], peer_of(line_of(keys["ben"]))), {name: k for k, name in enumerate(names)}

    def sit(members: dict[str, int]) -> Any:
        told = Welcome("run", 0, text, bytes(32), {}, members, 10)
        return sides_of(policy, told, assessed, side, "ada", tmp_path, session)

    for _ in range(2):  # the second time it is as it was
        assert set(sit(members)) == {"train"}
    for other in ({**members, "ben": 2, "cleo": 1}, {**members, "eve": 4}, {"ada": 0, "ben": 1, "cleo": 2}):
        if "eve" in other:
            roster.write_text(roster.read_text() + f"{line_of(new_key(tmp_path, 'eve'))}\n")
        with pytest.raises(NotAllowed, match="whole_batches: the parties of this job, or their numbers, are others"):
            sit(other)


def test_parties_of_an_edge_have_one_wire_though_their_numbers_do_not_begin_at_0() -> None:
    """Those who took another number of parties for theirs would not agree in what a hidden sum is of."""
    from atoll.runtimes.network.messages.envelope import Welcome
    from atoll.runtimes.network.party.assess import assess
    from atoll.runtimes.network.party.line import parties_of

    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Ring())
    text = dumps(to_table(atoll.Job(JOB.method, atoll.All(), atoll.Channel(stages, atoll.SecureSum())), RECIPE, 0))
    members = {"ada": 6, "ben": 7, "cleo": 8}
    policy = Policy(data={**RECIPE, "party": 0})
    wires = {
        assess(Session(policy, text, number, parties_of(told), 10), "", "").conversations["train"][1]
        for number in members.values()
        for told in [Welcome("run", number, text, bytes(32), {}, members, 10)]
    }
    assert len(wires) == 1
    edge = assemble(atoll.Job(JOB.method, atoll.All(), atoll.Channel(stages, atoll.SecureSum())),
                    remote(build(RECIPE), [1] * 9), world=World.real(0))  # fmt: skip
    assert wires == {edge.wire}


class FailingRole:
    """A role whose work raises, as in a child process."""

    def question(self, what: str) -> Question:
        return Question(what, Layout({}), Layout({}), ("A",))

    def answer(self, what: str, question: Tree, until: float) -> Tree:
        raise PartyFailed("row 3 of the ledger is not finite")


def test_a_role_that_fails_says_so_and_nothing_of_training_or_of_its_data(tmp_path: Path) -> None:
    policy, said, body = Policy(data={}), list[str](), write_tree({})
    header = header_of("question", "run/1", body)
    head = QuestionHead("run", 1, "A.rows", 0, 30.0, header.size, header.sha256)
    welcome = Welcome("run", 0, "a job", bytes(32), {})
    assessed = Assessment(Manifest("", "joint_moments", "", 0, 1, 3, "roles"), "", {}, {}, 9)
    budget = JobBudget(DataAccount(tmp_path / "accounts", "ledger"), policy, assessed, "a job")
    with (
        AuditLog(tmp_path / "audit.jsonl") as audit,
        closing(PartyTransport("127.0.0.1:1", Insecure("bank"), folder=tmp_path)) as transport,
    ):
        session = RoleSession(policy, "a job", "bank", 0)
        party = Party(
            transport, b"", welcome, session, budget, {}, tmp_path, audit, Times(), said.append, FailingRole()
        )
        answer, text = party._answer(head, Payload(header, BytesIO(body)))
    assert answer.declined == "the answer to 'A.rows' failed at the party; its own log says why"
    assert text == b""
    assert "row 3 of the ledger" in said[0], "only this party reads what went wrong"


def test_a_party_is_told_that_sums_over_its_test_data_are_hidden() -> None:
    """What may be asked of it shows its own figures in no other form than masked; its policy has the same word."""
    channel = atoll.Channel([atoll.Clip(1.0), atoll.Average(), atoll.Ring()], atoll.SecureSum())
    recipe = {**RECIPE, "test": 0.2}
    text = dumps(to_table(replace(JOB, channel=channel), recipe, 0))
    policy = Policy(data={**recipe, "party": 1})
    found = assess(Session(policy, text, 1, 3, 10), "", "")
    asked = {name: one for name, one in found.questions.items() if name.startswith("evaluate")}
    assert asked.keys() == {f"evaluate.local/secure.{step}" for step in secagg.STEPS}
    assert {one.exposure for one in asked.values()} == {"nothing", "masked"}
    assert not any(one.contributes for one in asked.values())
    assert "the total over parties only" in asked["evaluate.local/secure.masked"].reveals["evaluation"]
    assert found.conversations.keys() == {"train", "evaluate.local"}
    assert "(the sum over all parties only)" in found.words
    assert set(found.manifest.metrics) == {"loss", "accuracy"}
    with pytest.raises(NotAllowed, match="allow_metrics"):
        policy.check(found.manifest, now=datetime.now().astimezone())


def test_a_kept_answer_that_the_disk_has_changed_is_not_sent_again(tmp_path: Path) -> None:
    kept = LastAnswers(tmp_path / "answers" / "job")
    kept.remember(WHAT, b"a question", b"an answer")
    assert kept.recall(WHAT, b"a question") == b"an answer"
    assert kept.recall(WHAT, b"another") is None
    (path,) = (tmp_path / "answers" / "job").iterdir()
    data = path.read_bytes()
    for at in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        path.write_bytes(wrong)
        assert kept.recall(WHAT, b"a question") is None
