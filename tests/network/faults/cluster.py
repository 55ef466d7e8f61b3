"""A federation of real processes on this machine, to be killed, stopped, starved and cut off."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import spawn
from atoll.journal import read
from atoll.runtimes.network.trust.roster import line_of, new_key

ATOLL = "from atoll.cli import main; main()"
ALL = '"all"'


CLOCK = ("time", "seconds", "elapsed", "work", "compile")
Facts = list[dict[str, Any]]


def job(rounds: int, parties: int = 3, select: str = ALL, hidden: int = 16) -> str:
    return f"""
name = "faults"
rounds = {rounds}
data = {{ use = "digits", clients = {parties} }}
method = {{ use = "fedavg", model = {{ use = "mlp", hidden = [{hidden}] }}, epochs = 1, batch = 10, lr = 0.1 }}
select = {select}
"""


class Cluster:
    """One server and parties called p0, p1, …; each is a process, and all of them are gone when it is closed.

    `code` given to a start is the Python program that runs the command: a fault put into one process alone.
    """

    def __init__(self, folder: Path, text: str, parties: int = 3, recipe: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.recipe = recipe or f'use = "digits", clients = {parties}'
        self.folder, self.run, self.parties = folder, folder / "run", parties
        self.address = ""
        self.ready = list[float]()  # seconds from each start of the server to its "serving at"
        self.processes = list[subprocess.Popen[str]]()
        (folder / "job.toml").write_text(text)
        self.server_line = line_of(new_key(folder, "server"))
        lines = [line_of(new_key(folder, f"p{k}")) for k in range(parties)]
        (folder / "roster").write_text("".join(f"{line}\n" for line in lines))

    def start(
        self,
        args: Sequence[str],
        log: str,
        *,
        code: str = ATOLL,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        command = [*before, sys.executable, "-c", code, *args]
        with (self.folder / log).open("a") as out:
            process = spawn.start(
                command, cwd=self.folder, stdout=out, stderr=out, text=True, env={**os.environ, **(environment or {})}
            )
        self.processes.append(process)
        return process

    def begin(self, *more: str, **how: Any) -> subprocess.Popen[str]:
        """Start the server, at its old address if it had one, without waiting until it is ready."""
        args = ["serve", "job.toml", "--roster", "roster", "--key", "server.key", "--run", "run"]
        return self.start([*args, "--address", self.address or "127.0.0.1:0", *more], "server.log", **how)

    def serve(self, *more: str, **how: Any) -> subprocess.Popen[str]:
        """Start the server and wait until it is ready."""
        before, began = len(self.said("server")), time.monotonic()
        process = self.begin(*more, **how)
        self.until(lambda: "serving at" in self.said("server")[before:] or process.poll() is not None, pause=0.01)
        found = re.search(r"serving at (\S+);", self.said("server")[before:])
        assert found, self.said("server")
        self.ready.append(time.monotonic() - began)
        self.address = found[1]
        return process

    def join(self, k: int, *, address: str = "", **how: Any) -> subprocess.Popen[str]:
        data = f"{{ {self.recipe}, party = {k} }}"
        (self.folder / f"p{k}.toml").write_text(f'allow_plain = true\nroster = "roster"\ndata = {data}\n')
        args = ["join", address or self.address, "--server", self.server_line, "--key", f"p{k}.key"]
        return self.start([*args, "--policy", f"p{k}.toml", "--folder", f"party-{k}"], f"p{k}.log", **how)

    def join_all(self, **how: Any) -> list[subprocess.Popen[str]]:
        return [self.join(k, **how) for k in range(self.parties)]

    def revive(self, parties: list[subprocess.Popen[str]]) -> int:
        """Start parties again that have ended, as a service manager would; gives how many."""
        ended = [k for k, party in enumerate(parties) if party.poll() is not None]
        for k in ended:
            parties[k] = self.join(k)
        return len(ended)

    def said(self, who: str) -> str:
        log = self.folder / f"{who}.log"
        return log.read_text() if log.exists() else ""

    def until(self, holds: Callable[[], object], within: float = 300.0, pause: float = 0.05) -> None:
        end = time.monotonic() + within
        while not holds():
            assert time.monotonic() < end, {p.name: p.read_text()[-2000:] for p in self.folder.glob("*.log")}
            time.sleep(pause)

    def facts(self, what: str = "") -> list[dict[str, Any]]:
        """All that was noted in the order of the file, also what was done again after a crash."""
        path = self.run / "facts.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        facts = [json.loads(line) for line in lines if line.endswith("}")]
        return [fact for fact in facts if not what or fact["what"] == what]

    def told(self) -> Facts:
        """What counts of the rounds and their evaluations, but for what a clock says."""
        facts = [fact for fact in read(self.run).facts if fact["what"] in ("round", "evaluation")]
        return [{name: value for name, value in fact.items() if name not in CLOCK} for fact in facts]

    def rounds(self) -> int:
        return max((fact["round"] for fact in self.facts("round")), default=0)

    def rows(self, query: str) -> list[Any]:
        """Look into what the server remembers."""
        with closing(sqlite3.connect(f"file:{self.run}/server.sqlite?mode=ro", uri=True)) as db:
            return db.execute(query).fetchall()

    def finished(self) -> bool:
        """Whether the run has ended with a model, also if its server was killed after that."""
        return (self.run / "model.safetensors").exists() and self.rows("SELECT state FROM runs") == [("finished",)]

    def newest(self) -> int:
        """The round of the newest checkpoint, -1 if there is none."""
        return max((int(path.stem) for path in (self.run / "checkpoints").glob("*.safetensors")), default=-1)

    def model(self) -> bytes:
        return (self.run / "model.safetensors").read_bytes()

    def status(self) -> dict[str, Any]:
        command = [sys.executable, "-c", ATOLL, "status", "run", "--json"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def ends(self, server: subprocess.Popen[str], within: float = 600.0) -> None:
        """Wait for a server that finishes its run."""
        assert server.wait(within) == 0, self.said("server")[-3000:]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)


class Whole(NamedTuple):
    """A run that nobody disturbs: its model, and what it says of its rounds."""

    model: bytes
    facts: Facts


@cache
def whole(text: str, parties: int = 3, code: str = ATOLL) -> Whole:
    with tempfile.TemporaryDirectory() as folder, closing(Cluster(Path(folder), text, parties)) as cluster:
        server = cluster.serve()
        cluster.join_all(code=code)
        cluster.ends(server)
        return Whole(cluster.model(), cluster.told())


def undisturbed(text: str, parties: int = 3, code: str = ATOLL) -> bytes:
    """The model of a run that nobody disturbs."""
    return whole(text, parties, code).model


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """A process and all that descend from it."""
    whole = psutil.Process(process.pid)
    return [whole, *whole.children(recursive=True)]


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes in which a party trains."""
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if "resource_tracker" not in " ".join(child.cmdline())]


def left_of(processes: Sequence[psutil.Process], within: float) -> list[psutil.Process]:
    """Those that are still there after so many seconds; nobody waits for a zombie."""
    end = time.monotonic() + within
    while (alive := [p for p in processes if _lives(p)]) and time.monotonic() < end:
        time.sleep(0.05)
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
