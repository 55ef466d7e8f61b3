"""Release 0.1 and this one: what a party has spent still counts, and peers of the other release are told to upgrade."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

import spawn

pytest.importorskip("grpc")

from atoll.crypto.keys import Refused
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.messages.envelope import PROTOCOL, Hello, Welcome, read_envelope, write_envelope
from atoll.runtimes.network.messages.trees import Fault, Layout
from atoll.runtimes.network.party.audit import AuditLog, contributed, verify
from atoll.runtimes.network.party.budget import carry_over
from atoll.runtimes.network.party.spending import DataAccount, epsilon
from atoll.runtimes.network.server.hub import Hub
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trust.tls import Insecure

RECORDED = Path(__file__).parents[1] / "golden" / "release_0_1" / "party"
THEN = datetime(2026, 11, 20, tzinfo=UTC)  # the month in which the audit was recorded


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return Path(shutil.copy(RECORDED / "audit.jsonl", tmp_path / "audit.jsonl"))


# --- what was spent ---------------------------------------------------------------------------------------------------


def test_answers_under_the_release_still_count_and_what_they_spent_counts_as_unlimited(audit: Path) -> None:
    """Their lines say an ε at the job's own δ, and nothing of the noise: it does not add up with any other."""
    jobs = [line["job"] for line in map(json.loads, audit.read_text().splitlines()) if line["what"] == "joined"]
    account = DataAccount(audit.parent / "accounts", "wards")
    with AuditLog(audit, clock=lambda: THEN) as log:
        for _ in range(2):
            carry_over(log, account)
    found = account.read()
    assert [found.of(job=job).rounds for job in jobs] == [2, 2]
    assert found.of().bytes > 0
    assert epsilon(found.of(month=f"{THEN:%Y-%m}").costs, 1e-5) == inf
    assert epsilon(found.of(month="2027-01").costs, 1e-5) == 0.0


def test_an_audit_of_the_release_is_gone_on_with(audit: Path) -> None:
    before = verify(audit)
    with AuditLog(audit, clock=lambda: THEN) as log:
        about = {"job": "new", "asked": "train/contribute", "bytes": 9}
        for question, digest, contributes in ((1, "a", True), (2, "b", False)):
            log.append("left", **about, question=question, sha256=digest * 64, contributes=contributes, epsilon=0.5)
        log.append("declined", **about, question=3, contributes=True, why="not now")
        assert ("new", "2026-11", {"train": 1}, 27) in log.unbooked()
    assert verify(audit) == before + 3


@pytest.mark.parametrize("asked", ["contribute", "secure.masked", "light.upload", "encrypted.seal"])
def test_questions_of_the_release_that_ask_for_a_vector_are_known(asked: str) -> None:
    assert contributed({"asked": asked})
    assert not contributed({"asked": asked, "contributes": False})


@pytest.mark.parametrize("asked", ["judge.own", "secure.share", "light.help", "encrypted.open", "evaluate/local", ""])
def test_other_lines_count_only_where_they_say_so(asked: str) -> None:
    assert not contributed({"asked": asked})
    assert contributed({"asked": asked, "contributes": True})
    assert not contributed({"asked": asked, "contributes": "yes"})


# --- peers ------------------------------------------------------------------------------------------------------------


def test_the_recorded_hello_of_the_release_is_refused_in_a_sentence(tmp_path: Path) -> None:
    times = Times(wait=1.0, silence=3.0, grace=0.2, patience=5.0)
    with Store(tmp_path) as store:
        store.enrol([("ada", "key of ada")])
        store.create("run")
        hub = Hub("run", store, Silent(), Worker({}, {}, 0), {}, data=Layout({}), job="", manifest=bytes(32),
                  roster=lambda: {m.name: m.key for m in store.members()}, times=times)  # fmt: skip
        server = ServerTransport("127.0.0.1:0", Insecure("server"), hub, times=times, folder=tmp_path)
        line = PartyTransport(server.start(), Insecure("ada"), times=times)
        try:
            with pytest.raises(Refused, match="the server speaks version 3, this party 2: upgrade this party with pip"):
                line.hello((RECORDED / "hello.msgpack").read_bytes())
            assert read_envelope(Welcome, line.hello(write_envelope(Hello("ada", 1, Layout({}))))).version == PROTOCOL
        finally:
            line.close()
            server.stop()


def test_a_welcome_of_the_release_is_refused_in_a_sentence() -> None:
    welcome = write_envelope(Welcome("run", 0, "", bytes(32), {}, version=2))
    with pytest.raises(Fault, match="the server speaks version 2, this party 3: upgrade the server with pip install"):
        read_envelope(Welcome, welcome)


class Silent:
    def note(self, note: object) -> None: ...

    def checkpoint(self, memory: object) -> None: ...


class Peers:
    """Processes of two releases on this machine; all of them are gone when the test ends."""

    def __init__(self, folder: Path, old: Path) -> None:
        self.folder, self.source = folder, {"old": old / "src", "new": Path(__file__).parents[2] / "src"}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, release: str, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from atoll.cli import main; main()", *args]
        environment = {**os.environ, "PYTHONPATH": str(self.source[release])}
        with (self.folder / f"{args[0]}.log").open("w") as log:
            process = spawn.start(
                command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=log
            )
        self.processes.append(process)
        return process

    def line(self, release: str, name: str) -> str:
        said = self.start(release, "key", "new", name).communicate(timeout=60)[0]
        found = re.search(r"^roster (.*)$", said, re.M)
        assert found, said
        return found[1]

    def serve(self, release: str) -> str:
        job = 'data = { use = "digits", clients = 2 }\nmethod = { use = "fedavg", model = "softmax" }\nselect = "all"\n'
        (self.folder / "job.toml").write_text(job)
        process = self.start(release, "serve", "job.toml", "--roster", "roster", "--key", "hub.key", "--address",
                             "127.0.0.1:0", "--run", "run")  # fmt: skip
        log, end = self.folder / "serve.log", time.monotonic() + 90
        while not (found := re.search(r"serving at (\S+);", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        return found[1]

    def join(self, release: str, address: str, server: str) -> str:
        policy = 'allow_plain = true\ndata = { use = "digits", clients = 2, party = 0 }\n'
        (self.folder / "policy.toml").write_text(policy)
        process = self.start(release, "join", address, "--server", server, "--key", "ada.key", "--policy",
                             "policy.toml", "--folder", "ada")  # fmt: skip
        assert process.wait(90) == 2
        return (self.folder / "join.log").read_text()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    old = os.environ.get("ATOLL_RELEASE_0_1")
    if not (old and (Path(old) / "src" / "atoll").is_dir()):
        pytest.skip("ATOLL_RELEASE_0_1 does not name a tree of release 0.1")
    made = Peers(tmp_path, Path(old))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("server", "party", "sentence"),
    [
        (
            "new",
            "old",
            "the server speaks version 3, this party 2: upgrade this party with pip install --upgrade atoll",
        ),
        (
            "old",
            "new",
            "the server speaks version 2, this party 3: upgrade the server with pip install --upgrade atoll",
        ),
    ],
)
def test_peers_of_two_releases_say_which_side_is_older(peers: Peers, server: str, party: str, sentence: str) -> None:
    hub = peers.line(server, "hub")
    (peers.folder / "roster").write_text(peers.line(party, "ada") + "\n")
    said = peers.join(party, peers.serve(server), hub)
    assert sentence in said
    assert "Traceback" not in said
