"""A party and a server that asks too often, comes back as another one, or waits for a training that hangs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("grpc")

from test_network_runs import ATOLL, Federation

import atoll
from atoll.core.effects import Ask, Note, Replies
from atoll.core.method import Population
from atoll.core.world import World
from atoll.data import build
from atoll.job.assemble import agreement_of, assemble, summary_of
from atoll.job.file import dumps, to_table
from atoll.programs.federate import question_of
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.messages.calls import Times, Unreachable
from atoll.runtimes.network.party.assess import assess
from atoll.runtimes.network.party.audit import verify
from atoll.runtimes.network.party.budget import account_of
from atoll.runtimes.network.party.join import join
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.party.session import Assessment, Session
from atoll.runtimes.network.party.spending import Tally, epsilon
from atoll.runtimes.network.server.hub import Hub
from atoll.runtimes.network.server.serve import remote
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.transport import ServerTransport
from atoll.runtimes.network.trust.tls import Insecure, ServerTLS

RECIPE = {"use": "digits", "clients": 3}
MINE = {**RECIPE, "party": 0}
JOB = atoll.Job(atoll.FedAvg(atoll.models.softmax(), lr=0.5), atoll.All(), rounds=5)
WHAT = "train/contribute"
TIMES = Times(wait=1.0, answer=60.0, silence=10.0, grace=0.2, patience=30.0)


@dataclass
class Asking:
    """A hub that asks its one party what a test says."""

    hub: Hub
    body: dict[str, Any]
    address: str
    notes: list[Note] = field(default_factory=list)

    def ask(self, within: float | None = None, more: float = 0.0) -> Replies:
        """Ask for a vector; `more` is added to the model."""
        broadcast = {
            **self.body["broadcast"],
            "params": np.asarray(self.body["broadcast"]["params"]) + np.float32(more),
        }
        self.hub.wait_for(1, 60)
        return self.hub.ask(Ask(np.arange(1), WHAT, {**self.body, "broadcast": broadcast}, within=within))


@dataclass
class Journal:
    note: Callable[[Note], None]

    def checkpoint(self, memory: object) -> None:
        pass


@contextmanager
def serving(
    folder: Path, job: atoll.Job = JOB, address: str = "127.0.0.1:0", side: ServerTLS | None = None, party: str = "ada"
) -> Iterator[Asking]:
    """A server with a folder of its own, in which questions are numbered from the first."""
    folder.mkdir()
    data, notes = build(RECIPE), list[Note]()
    made, text = assemble(job, remote(data, [9] * 3), world=World.real(0)), text_of(job)
    with Store(folder) as store:
        store.enrol([(party, "key"), ("ben", "of ben"), ("cleo", "of cleo")])  # of whom the first comes
        store.create("run")
        store.move("run", "running")
        hub = Hub(
            "run", store, Journal(notes.append), Worker({}, {}, World.real(0)), made.questions(3),
            data=summary_of(data).sample, classes=10, job=text, manifest=agreement_of(text),
            roster=lambda: {m.name: m.key for m in store.members()}, times=TIMES,
        )  # fmt: skip
        server = ServerTransport(address, side or Insecure("server"), hub, times=TIMES, folder=folder)
        method, program = made.program.method, made.program
        body = question_of(method, method.init(program.world, Population(program.sizes)), 0, {})
        yield Asking(hub, dict(body), server.start(), notes)
        server.stop(0)


def text_of(job: atoll.Job) -> str:
    return dumps(to_table(job, RECIPE, 0))


def assessed(job: atoll.Job) -> Assessment:
    return assess(Session(Policy(data=MINE), text_of(job), 0, 3, 10), "", "")


@dataclass
class Ada:
    """The party, in a thread of its own."""

    folder: Path
    said: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def join(self, address: str, policy: Policy) -> Future[str]:
        self.stop.clear()
        return self.threads.submit(
            join, address, Insecure("ada"), "ada", policy, self.folder, times=TIMES, say=self.said.append,
            stop=self.stop,
        )  # fmt: skip

    def lines(self, what: str) -> list[dict[str, Any]]:
        verify(self.folder / "audit.jsonl")
        lines = [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]
        return [line for line in lines if line["what"] == what]


@pytest.fixture
def ada(tmp_path: Path) -> Iterator[Ada]:
    made = Ada(tmp_path / "ada")
    made.folder.mkdir()
    yield made
    made.stop.set()
    for trainer in trainers():  # one that was left suspended would hold the party
        trainer.kill()
    made.threads.shutdown()


@pytest.mark.slow
def test_the_month_is_counted_on_across_restarts_of_both_sides(tmp_path: Path, ada: Ada) -> None:
    """A server in a new folder numbers its questions from the first again; the party counts what has left."""
    stages = (atoll.Clip(1.0), atoll.Average(), atoll.Gaussian(4.0, "local"))
    job = replace(JOB, channel=atoll.Channel(stages), rounds=2)
    (cost,) = assessed(job).costs.values()
    three, four = (epsilon({cost: n}, 1e-5) for n in (3, 4))
    assert four < 2 * epsilon({cost: 2}, 1e-5)  # composed, not added up
    policy = Policy(max_epsilon_month=(three + four) / 2, data=MINE, dataset="wards", jobs=("any",))
    account, month = account_of(policy, ada.folder), f"{datetime.now().astimezone():%Y-%m}"
    account.add("another job", month, Tally(costs=Counter({cost: 1})))
    with serving(tmp_path / "one", job) as server:
        party = ada.join(server.address, policy)
        first = server.ask()
        ada.stop.set()
        assert party.result(30) == "stopped by hand"
    with serving(tmp_path / "two", job) as server:
        party = ada.join(server.address, policy)
        again = server.ask()  # the same question: the same bytes, noise and all, which cost nothing
        assert np.array_equal(first.each["vector"], again.each["vector"])
        account.add("another job", month, Tally(costs=Counter({cost: 1})))  # by another process of this party
        assert not len(server.ask(more=1.0))
        with pytest.raises(NotAllowed, match="max_epsilon_month"):
            party.result(30)
    assert account.read().of(but="another job").answers == {"train": 1}
    left = ada.lines("left")
    assert [line["question"] for line in left] == [1, 1]
    assert {line["epsilon"] for line in left} == {epsilon({cost: 1}, 1e-5)}


@pytest.mark.slow
def test_bytes_are_counted_as_they_move_and_across_restarts(tmp_path: Path, ada: Ada) -> None:
    """What the job promises would just do, but trees have names, and a server may ask again."""
    policy = Policy(allow_plain=True, max_bytes=assessed(JOB).manifest.bytes, data=MINE)
    with serving(tmp_path / "one") as server:
        party, answered = ada.join(server.address, policy), 0
        while len(server.ask(more=answered)):
            answered += 1
        with pytest.raises(NotAllowed, match="max_bytes"):
            party.result(30)
    left = ada.lines("left")
    assert len(left) == answered > 1
    moved = sum(line["bytes"] + line["brought"] for line in left)
    most = policy.max_bytes or 0
    assert moved <= most < moved + left[0]["bytes"] + left[0]["brought"]
    with serving(tmp_path / "two") as server:
        party = ada.join(server.address, policy)
        assert not len(server.ask())
        with pytest.raises(NotAllowed, match="max_bytes"):
            party.result(30)
    assert len(ada.lines("left")) == answered


def trainers() -> list[psutil.Process]:
    """The processes in which this one's parties train."""
    return [child for child in psutil.Process().children() if any("spawn_main" in word for word in child.cmdline())]


@pytest.mark.slow
def test_a_training_that_hangs_is_given_up_in_time_and_the_next_question_answered(tmp_path: Path, ada: Ada) -> None:
    with serving(tmp_path / "one") as server:
        party = ada.join(server.address, Policy(allow_plain=True, data=MINE))
        assert len(server.ask()) == 1
        (trainer,) = trainers()
        trainer.suspend()
        assert not len(server.ask(within=12.0, more=1.0))
        (why,) = [note.facts["why"] for note in server.notes if note.what == "declined"]
        assert why == "training was given up: it took longer than the 12 s that the server waits"
        assert not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE
        assert len(server.ask(more=2.0)) == 1
        assert [line["why"] for line in ada.lines("declined")] == [why]
        assert server.hub.farewell.names == ["ada"]
        server.hub.end("the test is over")
        assert party.result(30) == "the test is over"
        assert server.hub.farewell.names == [], "she has said that she knows"


@pytest.mark.slow
def test_a_server_that_comes_back_as_another_one_is_looked_at_anew(tmp_path: Path, ada: Ada) -> None:
    with serving(tmp_path / "one") as server:
        address = server.address
        party = ada.join(address, Policy(allow_plain=True, max_rounds=10, data=MINE, jobs=("any",)))
        first = server.ask()
    with serving(tmp_path / "two", address=address) as server:  # the same job, and again a first question
        other = server.ask(more=0.5)
    assert [line["question"] for line in ada.lines("left")] == [1, 1]
    assert not np.array_equal(first.each["vector"], other.each["vector"])
    assert len(ada.lines("joined")) == 1
    longer = replace(JOB, rounds=6)
    with serving(tmp_path / "three", longer, address) as server:
        assert len(server.ask()) == 1
    assert [line["job"] for line in ada.lines("joined")] == [line["job"] for line in ada.lines("left")[1:]]
    with serving(tmp_path / "four", replace(JOB, rounds=11), address), pytest.raises(NotAllowed, match="max_rounds"):
        party.result(60)
    assert len(ada.lines("left")) == 3


def test_what_a_hello_tells_is_written_down_before_it_is_said(ada: Ada) -> None:
    with pytest.raises(Unreachable):
        join("127.0.0.1:1", Insecure("ada"), "ada", Policy(data=MINE), ada.folder, times=Times(patience=0.1))
    (line,) = ada.lines("hello")
    assert line["samples"] == build(RECIPE).train.sizes[0]
    assert line["server"] == "127.0.0.1:1"


@pytest.mark.slow
def test_a_policy_names_servers_by_key_or_line_and_models_by_the_hash_that_is_shown(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    try:
        federation.serve()
        _, key = federation.lines["server"].split()
        federation.lines["server"] += " of the registry"
        data = 'allow_plain = true\ndata = { use = "digits", clients = 3, party = 0 }\n'

        def said(policy: str) -> str:
            (tmp_path / "a.log").unlink(missing_ok=True)
            federation.join("a", f"{policy}\n{data}")
            federation.until(lambda: "joined" in audit() or "(see a.toml)" in log())
            federation.processes[-1].kill()
            federation.processes[-1].wait(10)
            return log()

        def audit() -> list[str]:
            file = tmp_path / "party-a" / "audit.jsonl"
            return [json.loads(line)["what"] for line in file.read_text().splitlines()] if file.is_file() else []

        def log() -> str:
            return (tmp_path / "a.log").read_text()

        found = re.search(r"models: the schema (\w{64}) is not", said(f'servers = ["{key}"]\nmodels = ["none"]'))
        assert found
        assert "servers: " in said(f'servers = ["server {key[::-1]}"]')
        shown = said(f'servers = ["server {key} a comment"]\nmodels = ["{found[1]}"]')
        assert f"this model is {found[1]}" in shown
    finally:
        federation.close()


WATCH = """
import os, socket, sys
def hook(event, about):
    told = event == "socket.getaddrinfo" or event == "socket.__new__" and about[1] != socket.AF_UNIX
    if told:
        with open(os.environ["ATOLL_SEEN"], "a") as file:
            file.write(f"{event} {about[1:]}\\n")
sys.addaudithook(hook)
"""


@pytest.mark.parametrize("command", ["list", "explain", "run"])
def test_alone_on_a_machine_no_connection_is_opened(command: str, tmp_path: Path) -> None:
    """Every Python process is watched, also those that train; the last one shows that a socket would be seen."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    seen = tmp_path / "seen"
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "ATOLL_SEEN": str(seen)}
    args = ["run", "digits", "--rounds", "1", "--workers", "2"] if command == "run" else [command]
    subprocess.run([*ATOLL, *args], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert not seen.exists(), seen.read_text()
    control = [sys.executable, "-c", "import socket; socket.socket().close()"]
    subprocess.run(control, env=environment, check=True)
    assert seen.read_text().startswith("socket.__new__")


def test_a_party_that_is_early_waits_for_its_hours(tmp_path: Path, ada: Ada) -> None:
    soon = datetime.now() + timedelta(hours=2)
    closed = Policy(data=MINE, allow_plain=True, hours=f"{soon:%H:%M}-{soon + timedelta(minutes=1):%H:%M}")
    joined = ada.join("127.0.0.1:1", closed)  # nobody is there, and nobody is called
    with pytest.raises(TimeoutError):
        joined.result(0.5)
    assert "waits until then" in ada.said[0]
    ada.stop.set()
    assert joined.result(10) == "stopped by hand"


@pytest.mark.nightly
def test_a_party_says_when_its_hours_end_and_is_back_when_they_begin(
    tmp_path: Path, ada: Ada, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = threading.Event()
    opened.set()
    monkeypatch.setattr(Policy, "open_at", lambda *_: opened.is_set())
    policy = Policy(data=MINE, allow_plain=True, hours="20:00-06:00")
    with serving(tmp_path / "server") as asking:
        joined = ada.join(asking.address, policy)
        assert len(asking.ask()) == 1
        opened.clear()
        assert len(asking.ask()) == 0
        assert asking.hub.snapshot()["refused"] == {"ada": "this party takes part at 20:00-06:00 only"}
        assert asking.hub.online().tolist() == []
        opened.set()
        assert len(asking.ask()) == 1  # it waits until she is there
        assert asking.hub.snapshot()["refused"] == {}
        ada.stop.set()
        joined.result(30)
