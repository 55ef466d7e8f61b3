"""What a lying server's welcome may do to a party: import nothing that was not allowed, and take no memory."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
import spawn
from atoll.core.question import Fault
from atoll.crypto.keys import Refused
from atoll.job.catalogue import BadJob
from atoll.runtimes.local.process import Subprocess, TooLarge
from atoll.runtimes.network.messages.envelope import Welcome, read_envelope, write_envelope
from atoll.runtimes.network.party.join import welcomed
from atoll.runtimes.network.party.policy import BadPolicy, NotAllowed, Policy
from atoll.runtimes.network.party.roles import RoleSession, role_of


def test_a_program_of_a_servers_text_imports_no_module() -> None:
    job = 'name = "x"\nrounds = 1\nprogram = { use = "this:Zen" }\nroles = { A = "ada" }\n'
    with pytest.raises(BadJob, match="imported by a job file of one's own machine only"):
        role_of(RoleSession(Policy(), job, "ada", 0))


@pytest.mark.parametrize("lie", [{"number": 2**40}, {"members": {"ada": 2**40}}, {"classes": 2**40}])
def test_a_number_that_no_federation_has_is_refused_before_it_is_used(lie: dict[str, object]) -> None:
    said = Welcome(**{"run": "r", "number": 0, "job": "", "manifest": bytes(32), "answers": {}, **lie})  # type: ignore[arg-type]
    with pytest.raises(Fault, match="the bytes are no Welcome"):
        read_envelope(Welcome, write_envelope(said))


def welcome(**lie: object) -> bytes:
    job = str(lie.get("job", ""))
    said = {"run": "r", "number": 0, "manifest": sha256(job.encode()).digest(), "answers": {}, "members": {"a": 0}}
    return write_envelope(Welcome(**{**said, "job": job, **lie}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lie", "key"),
    [
        ({"number": 2**19}, "max_parties"),
        ({"members": {"a": 2**19}}, "max_parties"),
        ({"classes": 2**19}, "max_classes"),
    ],
)
def test_sizes_that_a_server_says_are_held_against_the_policy_before_they_are_used(
    lie: dict[str, object], key: str
) -> None:
    class Line:
        def hello(self, hello: bytes) -> bytes:
            return welcome(**lie)

    with pytest.raises(NotAllowed, match=f"{key}: the server says 524,28"):
        welcomed(Line(), b"", Policy())  # type: ignore[arg-type]
    assert welcomed(Line(), b"", Policy(**{key: 2**20})).job == ""  # type: ignore[arg-type]
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(BadPolicy, match=key):
            Policy(**{key: wrong})


def grow(size: int) -> int:
    return int(np.ones(size, np.uint8).sum())


def test_the_child_that_assesses_a_job_has_a_memory_limit() -> None:
    with Subprocess(1_000_000_000) as child:
        assert child.do(grow, 10_000_000, within=60) == 10_000_000
        with pytest.raises(TooLarge, match="grow needs more memory than the 1,000,000,000 bytes that it may have"):
            child.do(grow, 3_000_000_000, within=60)


HUGE = """
name = "huge"
data = { use = "digits", clients = 3 }
method = { use = "fedavg", model = { use = "mlp", hidden = [1000000, 1000000] } }
select = "all"
"""


MODELS = {
    "mlp": ('{ use = "mlp", hidden = [1000000, 1000000] }', 1_000_076_000_010),
    "one wide layer": ('{ use = "mlp", hidden = [20000000] }', 1_500_000_010),
    "cnn": ('{ use = "cnn", channels = [100000, 100000] }', 250_207_505_642),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_any_size_in_a_job_is_refused_by_the_policy_before_any_of_it_is_made(name: str) -> None:
    """On the old code it was made first, and the memory limit of the child was what refused it."""
    from atoll.runtimes.network.party.assess import assess
    from atoll.runtimes.network.party.session import Session

    model, size = MODELS[name]
    job = HUGE.replace('{ use = "mlp", hidden = [1000000, 1000000] }', model)
    policy = Policy(allow_plain=True, data={"use": "digits", "clients": 3, "party": 0})
    tracemalloc.start()
    try:
        with pytest.raises(NotAllowed, match=f"max_parameters: the server says {size:,} parameters, and 100,000,000"):
            assess(Session(policy, job, 0, 3, 10), "", "")
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_a_larger_model_than_the_memory_holds_is_refused_in_a_sentence_where_the_policy_would_allow_it() -> None:
    from atoll.runtimes.network.party.join import _assess
    from atoll.runtimes.network.party.session import Session

    policy = Policy(allow_plain=True, max_parameters=10**13, data={"use": "digits", "clients": 3, "party": 0})
    said = "assess needs more memory than the 8,000,000,000 bytes"
    with Subprocess(policy.max_assess_memory) as child, pytest.raises(TooLarge, match=said):
        child.do(_assess, Session(policy, HUGE, 0, 3, 10), "", "", within=120)


# --- what is shown is text -------------------------------------------------------------------------------------------

EVIL = "no\x1b[2J\x1b]0;owned\x07\r\natoll: all is well\x9b31m\u202e\x00"
GARBLES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]")


class Hostile:
    """A server that refuses one party, and gives the other a job, with all that could garble a screen."""

    def hello(self, name: str, hello: bytes) -> bytes:
        if name == "refused":
            raise Refused(EVIL)
        evil = EVIL.encode("unicode_escape").decode().replace("\\x", "\\u00")  # as TOML writes them, in ASCII
        return welcome(job=f'name = "{evil}"\ndata = "digits"\nmethod = "fedavg"\n', members={"job": 0}, classes=10)

    def next_question(self, name: str, wait: float) -> None:
        return None

    def answer(self, name: str, header: Any, body: Any) -> bytes:
        return b""

    def here(self, name: str) -> None: ...
    def goodbye(self, name: str) -> None: ...


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("grpc")
    from atoll.runtimes.network.transport import ServerTransport
    from atoll.runtimes.network.trust.tls import Insecure

    server = ServerTransport("127.0.0.1:0", Insecure("server"), Hostile(), folder=tmp_path)
    yield server.start()
    server.stop(0)


def test_a_lying_servers_text_reaches_no_terminal_and_no_log(hostile: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('data = { use = "digits", clients = 3, party = 0 }')
    command = [sys.executable, "-c", "from atoll.cli import main; main()", "join", hostile, "--policy", "policy.toml"]
    screen, theirs = os.openpty()
    logs = {name: tmp_path / f"{name}.log" for name in ("refused", "job")}
    with (tmp_path / "refused.log").open("wb") as log:
        said = ["--insecure", "refused", "--folder", "r", "--log", "json"]
        first = spawn.start([*command, *said], cwd=tmp_path, stdout=log, stderr=log)
    second = spawn.start([*command, "--insecure", "job", "--folder", "j"], cwd=tmp_path, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    with open(screen, "rb", buffering=0) as terminal:
        while chunk := _read(terminal):
            seen += chunk
    assert second.wait(60) != 0
    assert first.wait(60) != 0
    shown = seen.decode().replace("\r\n", "\n")  # as a terminal ends its lines
    assert not GARBLES.search(shown)
    assert "has control characters" in shown
    logged = logs["refused"].read_text()
    assert not GARBLES.search(logged)
    texts = [json.loads(line).get("text", "") for line in logged.splitlines()]
    assert any("no\\x1b[2J" in text for text in texts), texts
    assert not any(GARBLES.search(text) or "\natoll" in text for text in texts)
    for audit in tmp_path.rglob("audit.jsonl"):
        assert not GARBLES.search(audit.read_text())


def _read(terminal: Any) -> bytes:
    try:
        return bytes(terminal.read(4096))
    except OSError:  # the other end is closed
        return b""


def test_a_peers_text_reaches_no_page_and_no_line_of_a_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from atoll.cli.logs import LogFormat, speaking

    data = atoll.data.load("digits").split(3, seed=0)
    run = atoll.simulate(atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=1), data)
    run.facts.insert(-1, {"what": "rejected", "party": EVIL, "reason": EVIL, "why": EVIL, "time": 0.0})
    run.facts[-1]["reason"] = EVIL
    page = run.report(tmp_path / "report.html").read_text()
    assert not GARBLES.search(page)
    assert "no\\x1b[2J" in page
    with speaking(LogFormat.text) as say:
        say("told", EVIL)
        logging.getLogger("atoll.test").warning("refused: %s", EVIL)
    err = capfd.readouterr().err
    assert "\\x1b[2J" in err
    assert not GARBLES.search(err)


def test_a_job_of_a_peer_has_no_control_characters_in_any_text() -> None:
    from atoll.job.file import parse

    job = (
        'name = "x"\ndata = { use = "digits" }\nmethod = "fedavg"\nstop = [{ use = "target", metric = "\\u001b[2J" }]\n'
    )
    with pytest.raises(BadJob, match="has control characters") as caught:
        parse(job, "the server's job", local=False)
    assert not GARBLES.search(str(caught.value))
