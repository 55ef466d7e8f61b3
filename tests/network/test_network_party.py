"""A party does not trust its server: it bounds what it gives and looks at what it is asked."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

import atoll
from atoll.core.effects import Ask, Note
from atoll.core.party import Group
from atoll.core.tree import leaves
from atoll.data import build
from atoll.job import assemble
from atoll.jobfile import dumps, to_table
from atoll.join import join
from atoll.party import Bounded, worker_of
from atoll.runtimes.network.audit import verify
from atoll.runtimes.network.calls import Times
from atoll.runtimes.network.hall import Hall
from atoll.runtimes.network.policy import NotAllowed, Policy
from atoll.runtimes.network.store import Store
from atoll.runtimes.network.tls import Insecure
from atoll.runtimes.network.transport import ServerTransport
from atoll.runtimes.network.trees import Layout, Leaf
from atoll.runtimes.workers import Chunk, Worker
from atoll.seat import Seat
from atoll.serve import answer_layouts, as_served, remote, sample_layout

RECIPE = {"use": "digits", "clients": 3}
JOB = atoll.Job(atoll.FedAvg(atoll.models.softmax(), lr=0.5), atoll.All(), rounds=5)
TEXT = dumps(to_table(JOB, RECIPE, 0))


def length_of(vector: Any) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for _, leaf in leaves(vector))))


def test_no_vector_leaves_longer_than_the_party_says() -> None:
    made = assemble(JOB, build(RECIPE))
    method, share = made.plan.method, made.plan.method.share(made.plan.method.init(0))
    group = Group(np.array([1]), made.rooms["train"], np.array([1]), 0, 0)
    free, weight = method.task(share, group)
    assert length_of(free) > 0.1
    for most in (0.1, 1e6):
        bounded, same = Bounded(method, most).task(share, group)
        assert length_of(bounded) == pytest.approx(min(most, length_of(free)), rel=1e-5)
        assert np.array_equal(same, weight)
    seat = Seat({**RECIPE, "party": 1}, TEXT, 1, 3, 10, most_length=0.1)
    answer = worker_of(seat).answer(Chunk("contribute", 0, np.array([1]), {}, ()), {"share": share, "t": 0})
    row = answer.each["vector"][0]
    assert np.linalg.norm(row[:-1] / row[-1]) == pytest.approx(0.1, rel=1e-4)  # the last number is the weight


class Notes:
    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def keep(self, memory: object) -> None:
        pass


@pytest.mark.slow
def test_a_question_that_is_not_of_the_job_is_declined_and_nothing_is_trained(tmp_path: Path) -> None:
    data, times = build(RECIPE), Times(wait=2.0, answer=60.0, silence=10.0, grace=0.2, patience=30.0)
    made = assemble(as_served(JOB), remote(data, [9] * 3))
    share = made.plan.method.share(made.plan.method.init(0))
    layouts = {**answer_layouts(made, 3), "secure.masked": Layout({"message": Leaf("uint8", (9,), upto=True)})}
    said: list[str] = []
    with Store(tmp_path) as store:
        store.enrol([("ada", "key")])
        store.create("run")
        store.move("run", "running")
        notes = Notes()
        hall = Hall(
            "run", store, notes, Worker({}, {}, 0), layouts, data=sample_layout(data), classes=10, job=TEXT,
            manifest=hashlib.sha256(TEXT.encode()).digest(), key_of=lambda _: "key", times=times,
        )  # fmt: skip
        server = ServerTransport("127.0.0.1:0", Insecure("server"), hall, times=times, folder=tmp_path)
        address = server.start()
        policy = Policy(allow_plain=True, data={**RECIPE, "party": 0})
        ended: list[str] = []
        party = threading.Thread(
            target=lambda: ended.append(
                join(address, Insecure("ada"), "ada", policy, tmp_path / "ada", times=times, say=said.append)
            )
        )
        party.start()
        hall.wait_for(1, 60)
        params = np.asarray(share["params"])
        broken, shorter = {**share, "params": params * np.float32(np.nan)}, {**share, "params": params[:-1]}
        for what, body in (
            ("contribute", {"share": broken, "t": 0}),
            ("contribute", {"share": shorter, "t": 0}),
            ("contribute", {"share": share, "t": 0, "more": np.zeros(3)}),
            ("contribute", {"share": share, "t": 0, "more": np.zeros(2**20)}),  # more than is read into memory
            ("secure.masked", {"t": 0, "message": np.zeros(3, np.uint8)}),
        ):
            assert not len(hall.ask(Ask(np.arange(1), what, body)))
        good = hall.ask(Ask(np.arange(1), "contribute", {"share": share, "t": 0}))
        hall.end("the test is over")
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


def test_a_hidden_sum_among_keys_that_nobody_gave_this_party_is_refused(tmp_path: Path) -> None:
    from atoll.join import dialogue_of
    from atoll.party import assess
    from atoll.runtimes.network.message import Welcome
    from atoll.runtimes.network.roster import line_of, new_key, peer_of
    from atoll.runtimes.network.tls import PartySide

    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Ring())
    text = dumps(to_table(atoll.Job(JOB.method, atoll.All(), atoll.Channel(stages, atoll.SecureSum())), RECIPE, 0))
    assessed = assess(Seat({**RECIPE, "party": 0}, text, 0, 3, 10), "", "")
    keys = {name: new_key(tmp_path, name) for name in ("ada", "ben", "cleo")}
    side = PartySide(keys["ada"], peer_of(line_of(keys["ben"])))
    welcome = Welcome("run", 0, text, bytes(32), {}, {"ada": 0, "ben": 1, "cleo": 2}, 10)
    roster = tmp_path / "roster"

    def sit(policy: Policy, told: Welcome = welcome, credentials: Any = side) -> Any:
        return dialogue_of(policy, told, assessed, credentials, "ada", tmp_path)

    with pytest.raises(NotAllowed, match="name the file of their lines"):
        sit(Policy())
    with pytest.raises(NotAllowed, match="cannot read"):
        sit(Policy(roster=str(roster)))
    roster.write_text("".join(f"{line_of(key)}\n" for key in keys.values()))
    assert sit(Policy(roster=str(roster)))
    with pytest.raises(NotAllowed, match="--key instead of --insecure"):
        sit(Policy(roster=str(roster)), credentials=Insecure("ada"))
    with pytest.raises(NotAllowed, match="somebody else's"):
        sit(Policy(roster=str(roster)), Welcome("run", 1, text, bytes(32), {}, {"ada": 0, "ben": 1}, 10))
    roster.write_text(f"{line_of(keys['ben'])}\n")
    with pytest.raises(NotAllowed, match="another key for ada than its own, or none"):
        sit(Policy(roster=str(roster)))
