"""What an operator sees of a served run: health, metrics, logs, status, stopping; of real processes, also dead ones."""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spawn

pytest.importorskip("grpc")

from prometheus_client.parser import text_string_to_metric_families
from test_network_runs import ATOLL, Federation

from atoll.cli.logs import JsonLines, log_note
from atoll.cli.status import in_words, lasts, status, stop_run
from atoll.core.effects import Note
from atoll.core.errors import Unwritable
from atoll.crypto.keys import Refused
from atoll.job.catalogue import BadJob
from atoll.journal import Past
from atoll.journal.sealed import seal
from atoll.runtimes.network.messages.calls import Limits, Unreachable
from atoll.runtimes.network.messages.payload import header_of
from atoll.runtimes.network.server.health import CALLERS, HEAD, Endpoint, metrics
from atoll.runtimes.network.server.monitor import Monitor, last_said, server_of

ROOT = Path(__file__).resolve().parents[2]
SAID: dict[str, Any] = {
    "state": "running", "reason": "", "round": 7, "rounds": 30, "idle": 1.5, "epsilon": 0.25, "began": 1e9,
    "round_seconds": {"sum": 3.5, "count": 7}, "rejected": {"ben": 2}, "bytes_in": 1000, "bytes_out": 2000,
    "answers": {"accepted": 19, "rejected": 2},
    "parties": {"ada": {"connected": True, "silent": 0.5}, "ben": {"connected": False, "silent": None}},
    "questions": [{"what": "train/contribute", "round": 8, "seconds": 1.0, "asked": 2, "late": ["ben"]}],
}  # fmt: skip
JOB = """
name = "operated"
rounds = 60
data = { use = "digits", clients = 3 }
method = { use = "fedavg", model = "softmax", epochs = 1, batch = 10, lr = 0.1 }
select = "all"
"""


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    line = http.client.HTTPConnection(address, timeout=30)
    try:
        line.request(method, path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    finally:
        line.close()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Read metrics as a monitor does: by name, and the values of the labels."""
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


@pytest.fixture
def said() -> dict[str, Any]:
    return dict(SAID)


@pytest.fixture
def endpoint(said: dict[str, Any]) -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1:0", lambda: said)
    yield made
    made.close()


# ---- the endpoint


def test_health_says_how_it_is_going(endpoint: Endpoint, said: dict[str, Any]) -> None:
    code, text = get(endpoint.address, "/health")
    assert code == 200
    assert json.loads(text) == {
        "state": "running", "reason": "", "round": 7, "rounds": 30, "seconds_since_progress": 1.5,
        "parties_connected": 1,
    }  # fmt: skip
    for state, expected in (("waiting", 200), ("stopping", 503), ("failed", 503)):
        said["state"] = state
        assert get(endpoint.address, "/health")[0] == expected


def test_metrics_are_what_an_independent_parser_reads(endpoint: Endpoint) -> None:
    code, text = get(endpoint.address, "/metrics")
    found = samples(text)
    assert code == 200
    expected = {
        ("atoll_rounds_done",): 7, ("atoll_rounds_planned",): 30, ("atoll_idle_seconds",): 1.5,
        ("atoll_parties_connected",): 1, ("atoll_parties_late",): 1, ("atoll_party_silent_seconds", "ada"): 0.5,
        ("atoll_answers_total", "accepted"): 19, ("atoll_answers_total", "rejected"): 2,
        ("atoll_answers_total", "late"): 0, ("atoll_rejected_total", "ben"): 2, ("atoll_received_bytes_total",): 1000,
        ("atoll_sent_bytes_total",): 2000, ("atoll_epsilon",): 0.25, ("atoll_round_seconds_sum",): 3.5,
        ("atoll_round_seconds_count",): 7, ("process_start_time_seconds",): 1e9, ("atoll_disk_full",): 0,
    }  # fmt: skip
    resident = found.pop(("process_resident_memory_bytes",), None)
    assert found == expected
    if sys.platform == "linux":
        assert resident
        assert 1e6 < resident < 1e11


def test_a_name_of_any_signs_survives_the_format() -> None:
    odd = 'a"b\\c\nd'
    found = samples(metrics({**SAID, "rejected": {odd: 3}}))
    assert found["atoll_rejected_total", odd] == 3


def test_without_noise_there_is_no_epsilon() -> None:
    assert ("atoll_epsilon",) not in samples(metrics({**SAID, "epsilon": None}))


def test_only_two_pages_can_be_got_and_nothing_done(endpoint: Endpoint) -> None:
    assert get(endpoint.address, "/")[0] == 404
    assert get(endpoint.address, "/metrics", "POST")[0] == 501
    assert get(endpoint.address, "/metrics", "DELETE")[0] == 501


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "192.168.0.7:9464", "[::]:9464", "example.org:80", "9464"])
def test_no_address_of_others_is_listened_on(address: str) -> None:
    with pytest.raises(Refused, match=r"127\.0\.0\.1:PORT"):
        Endpoint(address, dict)


def test_a_port_in_use_is_a_sentence(endpoint: Endpoint) -> None:
    with pytest.raises(OSError, match="cannot listen on"):
        Endpoint(endpoint.address, dict)


def test_callers_that_send_too_much_or_nothing_are_hung_up_on(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.runtimes.network.server.health.SECONDS", 1.0)
    host, port = endpoint.address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as long:
        long.sendall(b"GET /health HTTP/1.0\r\nX: " + b"x" * HEAD)
        assert long.recv(1) == b""
    silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(CALLERS)]
    with socket.create_connection((host, int(port)), timeout=30) as crowd:
        assert crowd.recv(1) == b""  # one too many
    assert [line.recv(1) for line in silent] == [b""] * CALLERS
    for line in silent:
        line.close()
    assert get(endpoint.address, "/health")[0] == 200


# ---- what a server says of itself


def test_a_monitor_is_held_while_it_lasts_and_says_how_it_ended(tmp_path: Path) -> None:
    with Monitor(tmp_path, 30) as monitor:
        assert server_of(tmp_path) == os.getpid()
        monitor(Note("resume", {"round": 4}))
        monitor(Note("round", {"round": 5, "seconds": 2.0, "epsilon": 0.5}))
        monitor(Note("rejected", {"party": "ben", "reason": "size", "why": "too long"}))
        monitor.follow(lambda: {"over": "", "needed": 0, "parties": {}, "questions": []})
        now = monitor.status()
        assert (now["state"], now["round"], now["epsilon"], now["rejected"]) == ("running", 5, 0.5, {"ben": 1})
        assert now["round_seconds"] == {"sum": 2.0, "count": 1}
        monitor.follow(lambda: {"over": "", "needed": 3})
        assert monitor.status()["state"] == "waiting"
        monitor.follow(lambda: {"over": "it is over"})
        assert monitor.status()["state"] == "stopping"
        with pytest.raises(Unwritable, match="in use"), Monitor(tmp_path, 30):
            pass
        assert server_of(tmp_path) == os.getpid()  # the second one has not taken the place of the first
    assert server_of(tmp_path) is None
    assert last_said(tmp_path)["state"] == "finished"
    for error, state in ((KeyboardInterrupt(), "stopped"), (ValueError("no disk"), "failed")):
        with pytest.raises(type(error)), Monitor(tmp_path, 30):
            raise error
        assert last_said(tmp_path)["state"] == state
    assert last_said(tmp_path)["reason"] == "no disk"


def test_metrics_right_after_a_restart_are_those_before_it(tmp_path: Path) -> None:
    """Parties may take an hour to come back: until then nothing is noted."""
    facts = ({"what": "round", "round": 6, "epsilon": 1.0}, {"what": "round", "round": 7, "epsilon": 1.5})
    past = Past({"rounds": 7, "t": 7}, facts)
    with Monitor(tmp_path, 30, past=past) as monitor:
        found = samples(metrics(monitor.status()))
        assert found["atoll_rounds_done",] == 7
        assert found["atoll_epsilon",] == 1.5
        assert monitor.status()["state"] == "waiting"


def test_an_answer_that_cannot_be_stored_is_a_state_and_an_alarm(tmp_path: Path) -> None:
    why = "cannot write to run: No space left on device; free some space"
    (tmp_path / "job.toml").write_text("rounds = 30\n")
    with Monitor(tmp_path, 30, "127.0.0.1:0") as monitor:
        monitor(Note("round", {"round": 4}))
        for said, code in ((why, 503), ("", 200)):
            monitor.follow(lambda said=said: {"over": "", "needed": 0, "unwritten": said})  # type: ignore[misc]
            found, text = get(str(monitor.status()["health"]), "/health")
            assert found == code
            assert json.loads(text)["state"] == ("full" if said else "running")
            assert json.loads(text)["reason"] == said
            assert samples(metrics(monitor.status()))["atoll_disk_full",] == bool(said)
            monitor._write()
            assert (why in next(iter(in_words(status(tmp_path))))) == bool(said)


def test_a_body_that_does_not_fit_on_the_disk_is_told_to_the_service(federation: Any) -> None:
    """The party is told to come again; a disk that is away stands for one that is full."""
    federation.serve(limits=Limits(memory=1))
    federation.server._folder = federation.folder / "gone"
    header = header_of("answer", "r/1", b"x" * 100)
    with pytest.raises(Unreachable, match="cannot write to its disk just now"):
        federation.party().push(header, b"x" * 100)
    assert any(call[0] == "unwritten" and "gone" in call[1] for call in federation.service.calls)


def test_a_process_that_has_the_number_of_a_dead_server_is_not_the_server(tmp_path: Path) -> None:
    (tmp_path / "server.pid").write_text(str(os.getpid()))  # as SIGKILL leaves it, and the number was given again
    assert server_of(tmp_path) is None
    with pytest.raises(BadJob, match="no server is running"):
        stop_run(tmp_path)


def test_the_time_that_remains_is_of_the_last_rounds(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("rounds = 10\n")
    facts = [{"what": "start", "round": 0, "time": 5.0}]
    facts += [{"what": "round", "round": t, "time": 5.0 + 2.0 * t} for t in (1, 2, 3)]
    facts += [{"what": "resume", "round": 3, "time": 1.0}, {"what": "round", "round": 4, "time": 3.0, "epsilon": 1.5}]
    facts += [{"what": "rejected", "party": "ben", "reason": "size", "why": "too long", "time": 4.0}]
    (tmp_path / "facts.jsonl").write_text("".join(seal(fact) + "\n" for fact in facts))
    with Monitor(tmp_path, 10) as monitor:
        monitor(Note("round", {"round": 4}))
        monitor.follow(lambda: {"over": "", "needed": 0, **{k: SAID[k] for k in ("parties", "questions")}})
        monitor._write()
        now = status(tmp_path)
        words = list(in_words(now))
    assert now["seconds_left"] == 12.0
    assert words == [
        "running: 4 of 10 rounds done, about 12 seconds to go",
        "  round 8: 2 parties asked 1.0 seconds ago, no answer yet from ben",
        "  ada: connected",
        "  ben: left",
        "  rejected: 1 of ben, the last: too long",
        "  ε 1.50 so far",
    ]
    assert [lasts(s) for s in (0.25, 59, 150, 7200, 1e6)] == [
        "0.2 seconds", "59 seconds", "2 minutes", "2 hours", "12 days",
    ]  # fmt: skip


# ---- logs


def test_a_log_line_has_single_facts_and_no_array(caplog: pytest.LogCaptureFixture) -> None:
    facts = {
        "round": np.int64(3), "loss": math.nan, "each": [0.1, 0.2], "vector": np.ones(4), "job": {"name": "j", "k": 1},
        "level": "not this one",
    }  # fmt: skip
    with caplog.at_level(logging.INFO, "atoll"):
        log_note(Note("evaluation", facts))
        log_note(Note("rejected", {"party": "ben", "why": "two\nlines"}))
    look, rejected = (json.loads(JsonLines().format(record)) for record in caplog.records)
    assert look.pop("time").endswith("+00:00")
    assert look == {"level": "info", "event": "evaluation", "round": 3, "loss": "nan", "job": "j"}
    assert (rejected["level"], rejected["why"]) == ("warning", "two\nlines")
    assert "\n" not in JsonLines().format(caplog.records[1])


def test_a_mistake_is_a_json_line_too(tmp_path: Path) -> None:
    command = [*ATOLL, "join", "127.0.0.1:1", "--policy", "no.toml", "--insecure", "a", "--log", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert json.loads(line)["event"] == "failed"
    assert "no.toml" in json.loads(line)["text"]


def test_a_second_sigterm_ends_at_once() -> None:
    script = """
import time
from atoll.cli.network import _stop_kindly
_stop_kindly()
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("stopping", flush=True)
    time.sleep(600)
"""
    with spawn.start([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "stopping\n"
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM


# ---- real servers, real parties


class Operated(Federation):
    """A federation whose processes log JSON."""

    def start(self, *args: str, log: str) -> subprocess.Popen[str]:
        with (self.folder / log).open("a") as err:
            process = spawn.start(
                [*ATOLL, *args, "--log", "json"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=err, text=True
            )
        self.processes.append(process)
        return process

    def status(self) -> dict[str, Any]:
        command = [*ATOLL, "status", "run", "--json"]
        said = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        return json.loads(said.stdout)

    def health(self) -> str:
        return last_said(self.folder / "run")["health"]

    def logged(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.log").read_text().splitlines()]


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    made = Operated(tmp_path, JOB)
    yield made
    made.close()


def test_stop_waits_for_the_end_and_says_how_to_go_on(operated: Operated) -> None:
    server = operated.serve()
    assert operated.status()["state"] == "waiting"
    done = subprocess.run([*ATOLL, "stop", "run"], cwd=operated.folder, capture_output=True, text=True, check=True)
    assert "--run run" in done.stdout
    assert server_of(operated.folder / "run") is None
    assert server.wait(30) == 130
    now = operated.status()
    assert now["state"] == "stopped"
    assert "serve the same job" in now["reason"]
    assert [line["event"] for line in operated.logged("server")] == ["serving", "stopped"]
    operated.serve()  # at once, in the same folder
    assert operated.status()["state"] == "waiting"


@pytest.mark.nightly
def test_a_run_is_seen_alive_stuck_killed_and_finished(operated: Operated) -> None:
    server = operated.serve("--health", "127.0.0.1:0")
    assert (operated.status()["state"], operated.status()["needed"]) == ("waiting", 3)
    code, text = get(operated.health(), "/health")
    assert (code, json.loads(text)["state"], json.loads(text)["parties_connected"]) == (200, "waiting", 0)
    parties = {name: operated.join(name) for name in "abc"}
    operated.until(lambda: samples(get(operated.health(), "/metrics")[1])["atoll_rounds_done",] >= 3)

    # One of them sleeps: the round waits, and everybody can see for whom.
    parties["c"].send_signal(signal.SIGSTOP)
    looks: list[tuple[dict[str, Any], dict[tuple[str, ...], float]]] = []

    def stuck() -> bool:
        looks.append((status(operated.folder / "run"), samples(get(operated.health(), "/metrics")[1])))
        return any("c" in q["late"] for q in looks[-1][0]["questions"]) and looks[-1][1]["atoll_parties_late",] >= 1

    operated.until(stuck)
    now, seen = looks[-1]
    assert now["state"] == "running"
    assert now["parties"]["a"]["connected"]
    assert seen["atoll_answers_total", "accepted"] >= 2 * seen["atoll_rounds_done",]
    assert seen["atoll_received_bytes_total",] > 0
    assert seen["atoll_sent_bytes_total",] > 0
    assert now["seconds_left"] > 0
    server.kill()
    server.wait(10)
    dead = operated.status()
    assert dead["state"] == "stopped"
    assert "not running" in dead["reason"]
    assert not any(party["connected"] for party in dead["parties"].values())
    assert dead["parties"]["a"]["seen"] >= 0
    assert dead["questions"] == []

    parties["c"].send_signal(signal.SIGCONT)
    server = operated.serve()
    assert server.wait(200) == 0, (operated.folder / "server.log").read_text()
    assert [p.wait(60) for p in parties.values()] == [0, 0, 0]
    done = operated.status()
    assert (done["state"], done["round"], done["reason"]) == ("finished", 60, "all 60 rounds done")

    # Every line is JSON, of the server's and of the parties', and nobody's key is in any.
    assert {"serving", "health", "joined", "start", "resume", "round", "end"} <= {
        line["event"] for line in operated.logged("server")
    }
    assert operated.logged("a")[-1]["event"] == "ended"
    for name in ("server", "a", "b", "c"):
        key = (operated.folder / f"{name}.key").read_text()
        secrets = [word for word in key.split() if len(word) > 20]
        assert secrets
        for log in operated.folder.glob("*.log"):
            assert not [word for word in secrets if word in log.read_text()]


# ---- what is handed to operators


@pytest.mark.parametrize("unit", sorted((ROOT / "examples" / "deploy").glob("*.service")), ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong_with_the_units(unit: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name.replace("@.", "@hospital.")
    copy.write_text(unit.read_text().replace("/opt/atoll/bin/atoll", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_services_use_options_that_there_are() -> None:
    files = [path for path in (ROOT / "examples" / "deploy").iterdir() if path.suffix in (".service", ".yaml")]
    used = {"serve": set[str](), "join": set[str]()}
    for path in files:
        for command in re.findall(r"\b(?:serve|join)\b[ ,][^\n]*--(?:[^\n]*\n){1,3}", path.read_text()):
            used[command[:5].strip(" ,").rstrip(",")] |= set(re.findall(r"(?<=[ \[])--[a-z]+", command))
    for verb, options in used.items():
        shown = subprocess.run([*ATOLL, verb, "--help"], capture_output=True, text=True, check=True).stdout
        assert len(options) >= 5
        assert not [option for option in options if f"{option} " not in shown], options


@pytest.mark.nightly
def test_three_hospitals_learn_together_and_leave_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "three_hospitals.py"), "--rounds", "3"]
    done = spawn.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"(north|harbour|university) +│ +(\d+) │ +([\d.]+)% │ +([\d.]+)% │ +([\d.]+) kB", done.stdout)
    assert [int(row[1]) for row in rows] == [51, 42, 362]
    assert all(float(row[3]) > 90 and float(row[4]) > 0 for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["three_hospitals.html"]
