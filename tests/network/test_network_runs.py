"""Real servers and real parties, each a process of its own, on this machine: equal numbers, and faults survived."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import atoll
import spawn
from atoll.job.file import load

pytest.importorskip("grpc")

JOB = """
name = "net"
rounds = 4
data = { use = "digits", clients = 3 }
method = { use = "fedavg", model = { use = "mlp", hidden = [120, 120] }, epochs = 1, batch = 10, lr = 0.1 }
select = "all"
"""
ATOLL = [sys.executable, "-c", "from atoll.cli import main; main()"]


class Federation:
    """Processes of one test; all of them are gone when it ends."""

    run = "run"  # the server's folder

    def __init__(self, folder: Path, job: str = JOB) -> None:
        self.folder, self.address = folder, ""
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "job.toml").write_text(job)
        self.lines = {}
        for name in ("server", "a", "b", "c"):
            self.lines[name] = self.key(name, folder)
        (folder / "roster").write_text("".join(self.lines[n] + "\n" for n in ("a", "b", "c")))

    def key(self, name: str, folder: Path) -> str:
        """Make a key; give the line of its owner."""
        done = subprocess.run([*ATOLL, "key", "new", name], cwd=folder, capture_output=True, text=True, check=True)
        return re.search(r"^roster (.*)$", done.stdout, re.M)[1]  # type: ignore[index]

    def start(self, *args: str, log: str) -> subprocess.Popen[str]:
        with (self.folder / log).open("a") as out:
            process = spawn.start([*ATOLL, *args], cwd=self.folder, stdout=out, stderr=out, text=True)
        self.processes.append(process)
        return process

    def serve(self, *more: str) -> subprocess.Popen[str]:
        log = self.folder / "server.log"
        before = len(log.read_text()) if log.exists() else 0
        address = self.address or "127.0.0.1:0"
        process = self.start(
            "serve", "job.toml", "--roster", "roster", "--key", "server.key", "--address", address, "--run", self.run,
            *more, log="server.log",
        )  # fmt: skip
        self.until(lambda: "serving at" in log.read_text()[before:] or process.poll() is not None)
        found = re.search(r"serving at (\S+);", log.read_text()[before:])
        assert found, log.read_text()
        self.address = found[1]
        return process

    def join(self, name: str, policy: str | None = None) -> subprocess.Popen[str]:
        text = policy or f'allow_plain = true\ndata = {{ use = "digits", clients = 3, party = {"abc".index(name)} }}\n'
        (self.folder / f"{name}.toml").write_text(text)
        return self.start(
            "join", self.address, "--server", self.lines["server"], "--key", f"{name}.key", "--policy", f"{name}.toml",
            "--folder", f"party-{name}", log=f"{name}.log",
        )  # fmt: skip

    def until(self, holds: object, within: float = 120.0) -> None:
        end = time.monotonic() + within
        while not holds():  # type: ignore[operator]
            assert time.monotonic() < end, {p.name: p.read_text()[-2000:] for p in self.folder.glob("*.log")}
            time.sleep(0.05)

    def facts(self) -> list[dict[str, object]]:
        lines = (self.folder / self.run / "facts.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def model(self) -> np.ndarray:
        from safetensors.numpy import load_file

        tree = load_file(self.folder / "run" / "model.safetensors")
        return np.concatenate([tree[name].ravel() for name in sorted(tree)])

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.close()


def simulated(folder: Path) -> np.ndarray:
    from atoll.data import build

    said = load(str(folder / "job.toml"))
    params = atoll.simulate(said.job, build(said.data, said.seed), said.seed).params
    flat = {f"{a}/{b}" if isinstance(v, dict) else a: w for a, v in params.items() for b, w in
            (v.items() if isinstance(v, dict) else [("", v)])}  # fmt: skip
    return np.concatenate([np.ravel(flat[name]) for name in sorted(flat)])


@pytest.mark.slow
def test_a_served_run_has_the_bits_of_the_simulated_one(federation: Federation) -> None:
    server = federation.serve()
    parties = [federation.join(name) for name in "abc"]
    assert server.wait(120) == 0, (federation.folder / "server.log").read_text()
    assert [p.wait(30) for p in parties] == [0, 0, 0]
    assert np.array_equal(federation.model(), simulated(federation.folder))
    assert (federation.folder / "run" / "report.html").is_file()
    for name in "abc":
        from atoll.runtimes.network.party.audit import verify

        assert verify(federation.folder / f"party-{name}" / "audit.jsonl") >= 5
        assert "who sees what" in (federation.folder / f"{name}.log").read_text()
    command = [*ATOLL, "status", "run", "--json"]
    said = subprocess.run(command, cwd=federation.folder, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["state"] == "finished"


def test_a_folder_belongs_to_one_server_or_party_at_a_time(federation: Federation) -> None:
    server = federation.serve()
    first = federation.join("a")
    log = federation.folder / "a.log"
    federation.until(lambda: "who sees what" in log.read_text())
    assert federation.join("a").wait(60) != 0
    assert "party-a is in use by another process: stop that one first" in log.read_text()
    another = federation.start(
        "serve", "job.toml", "--roster", "roster", "--key", "server.key", "--address", "127.0.0.1:0", "--run", "run",
        log="another.log",
    )  # fmt: skip
    assert another.wait(60) != 0
    assert "in use by another process: stop that one first" in (federation.folder / "another.log").read_text()
    assert (first.poll(), server.poll()) == (None, None), "who was there first goes on"
    first.kill()
    first.wait()
    federation.join("a")
    federation.until(lambda: log.read_text().count("who sees what") == 2)


@pytest.mark.slow
def test_a_killed_server_goes_on_to_the_same_bits_and_a_killed_party_comes_back(tmp_path: Path) -> None:
    federation = Federation(tmp_path, JOB.replace("rounds = 4", "rounds = 30"))
    try:
        server = federation.serve()
        parties = {name: federation.join(name) for name in "abc"}
        federation.until(lambda: sum(f["what"] == "round" for f in federation.facts()) >= 3)
        server.send_signal(signal.SIGKILL)
        server.wait(10)
        server = federation.serve()
        federation.until(lambda: any(f["what"] == "resume" for f in federation.facts()))
        assert server.wait(150) == 0, (tmp_path / "server.log").read_text()
        assert [p.wait(60) for p in parties.values()] == [0, 0, 0]
        assert np.array_equal(federation.model(), simulated(tmp_path))
    finally:
        federation.close()


def test_a_party_that_forbids_plain_sums_says_so_and_does_not_take_part(federation: Federation) -> None:
    federation.serve()
    party = federation.join("a", 'data = { use = "digits", clients = 3, party = 0 }\n')
    assert party.wait(60) == 4
    said = (federation.folder / "a.log").read_text()
    assert "allow_plain" in said
    assert "Traceback" not in said


def test_a_stranger_is_refused_on_both_sides_in_a_sentence(federation: Federation) -> None:
    federation.serve()
    roster = federation.folder / "roster"
    roster.write_text("".join(federation.lines[n] + "\n" for n in ("b", "c")))  # a's line is gone
    party = federation.join("a")
    assert party.wait(90) == 4
    said = (federation.folder / "a.log").read_text()
    assert "roster" in said
    assert "Traceback" not in said
    server = federation.folder / "server.log"
    federation.until(lambda: "turned away a connection: its key is not in the roster" in server.read_text(), 2.0)
    assert "ssl_transport" not in server.read_text()


def test_a_server_whose_parties_do_not_come_ends(federation: Federation) -> None:
    server = federation.serve("--patience", "1")
    assert server.wait(60) == 3
    assert "0 of 3 parties came" in (federation.folder / "server.log").read_text()


def test_a_stop_that_nothing_measures_is_refused_before_anybody_is_waited_for(tmp_path: Path) -> None:
    job = JOB.replace("clients = 3 }", "clients = 3, holdout = 0.0 }")
    made = Federation(tmp_path, job + 'stop = [{ use = "target", metric = "test.accuracy", value = 0.9 }]\n')
    server = made.start("serve", "job.toml", "--roster", "roster", "--key", "server.key", "--run", "run", log="log")
    assert server.wait(60) == 2
    assert "nothing measures 'test.accuracy'" in (tmp_path / "log").read_text()


def test_no_child_outlives_its_party(federation: Federation) -> None:
    import psutil

    federation.serve()
    party = federation.join("a")
    federation.until(lambda: psutil.Process(party.pid).children(recursive=True))
    children = psutil.Process(party.pid).children(recursive=True)
    party.kill()
    party.wait(10)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    assert os.getpid()


def test_mistakes_are_one_sentence(federation: Federation) -> None:
    common = ("serve", "job.toml", "--address", "127.0.0.1:0", "--run", "run")
    cases = [
        ((*common, "--roster", "nowhere", "--key", "server.key"), "nowhere"),
        ((*common, "--roster", "roster", "--key", "nobody.key"), "atoll key new"),
        ((*common, "--roster", "roster"), "--key"),
        ((*common, "--roster", "roster", "--key", "server.key", "--set",
          "combine={use='encrypted_sum',key_holders=9}", "--set",
          "stages=[{use='clip',norm=1.0},{use='average'},{use='ring'}]"), "take fewer"),
        (("join", "127.0.0.1:1", "--server", federation.lines["server"], "--key", "a.key", "--policy", "no.toml"),
         "no.toml"),
        (("stop", "run"), "no server is running"),
    ]  # fmt: skip
    for args, words in cases:
        done = subprocess.run([*ATOLL, *args], cwd=federation.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 2, (args, done.stderr)
        assert words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["served", "a b", "run (2)", "x" * 100, "größe", "it's", "100%"])
def test_a_run_may_have_any_name_that_a_folder_has(tmp_path: Path, name: str) -> None:
    from atoll.core.question import Layout
    from atoll.runtimes.network.messages.envelope import Welcome, read_envelope, write_envelope
    from atoll.runtimes.network.server.serve import run_name

    welcome = Welcome(run_name(tmp_path / name), 0, "", bytes(32), {}, data=Layout({}))
    assert read_envelope(Welcome, write_envelope(welcome)) == welcome
    assert run_name(tmp_path / "served") == "served"
    assert run_name(Path("/")) == "run"


@pytest.mark.nightly
def test_a_folder_with_spaces_is_served_stopped_resumed_shown_and_reported(tmp_path: Path) -> None:
    federation = Federation(tmp_path, JOB.replace("[120, 120]", "[8]").replace("rounds = 4", "rounds = 200"))
    federation.run = name = "a b (1)"

    def command(*words: str) -> str:
        done = subprocess.run([*ATOLL, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    try:
        server = federation.serve()
        parties = [federation.join(one) for one in "abc"]
        federation.until(lambda: sum(fact["what"] == "round" for fact in federation.facts()) >= 2)
        assert "--run 'a b (1)'" in command("stop", name)
        assert server.wait(30) == 130
        assert "--run 'a b (1)' to resume it" in command("status", name)
        server = federation.serve()
        assert server.wait(180) == 0, (tmp_path / "server.log").read_text()
        assert [party.wait(60) for party in parties] == [0, 0, 0]
        assert any(fact["what"] == "resume" for fact in federation.facts())
        assert command("status", name).startswith("finished: 200 of 200 rounds done")
        (tmp_path / name / "report.html").unlink()
        command("report", name)
        assert (tmp_path / name / "report.html").is_file()
        command("run", "digits", "--rounds", "1", "--out", "c d")
        (alone,) = (tmp_path / "c d").iterdir()
        assert "ended: its only round is done" in command("run", "--resume", f"c d/{alone.name}")
    finally:
        federation.close()
