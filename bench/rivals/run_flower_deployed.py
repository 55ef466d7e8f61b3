"""Flower deployed on this machine: a SuperLink, SuperNodes, an app that trains nothing; seconds of each round.

    bench/.environments/flower/bin/python bench/rivals/run_flower_deployed.py --parties 10 --rounds 6

No TLS, loopback only, everything else as shipped: each SuperNode runs its ClientApp in a subprocess, as by default.
Ends with one JSON line. Everything that was started is gone when this ends.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
LIMIT = 400.0  # seconds for all of it
PR_SET_CHILD_SUBREAPER = 36


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def children() -> set[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(word) for task in tasks for word in task.read_text().split()}


def end_all() -> None:
    """End what was started: as subreaper this process inherits whatever its children leave behind."""
    until = time.monotonic() + 20
    while (left := children()) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def deployed(folder: Path, parties: int, rounds: int, size: int) -> dict:
    app, home, report = folder / "app", folder / "home", folder / "ends.json"
    shutil.copytree(HERE / "flower_app", app)
    home.mkdir()
    link, *nodes = free_ports(1 + parties)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env = {**os.environ, **off, "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def start(name: str, *words: object) -> subprocess.Popen:
        with (folder / "log").open("a") as log:
            return subprocess.Popen([str(BIN / name), *map(str, words)], env=env, cwd=folder, stdout=log, stderr=log)

    began = time.time()
    start("flower-superlink", "--insecure", "--port", link, "--disable-runtime-dependency-installation")
    wait_for(lambda: listens(link), folder)
    for port in nodes:
        start("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", port)
    config = f'parties={parties} rounds={rounds} size={size} report="{report}"'
    if start("flwr", "run", app, "here", "--run-config", config).wait(LIMIT):
        raise RuntimeError(f"flwr run failed: {(folder / 'log').read_text()[-2000:]}")
    wait_for(report.exists, folder)
    ends = json.loads(report.read_text())
    if len(ends) < rounds:
        raise RuntimeError(f"{len(ends)} of {rounds} rounds were done: {(folder / 'log').read_text()[-2000:]}")
    return {"version": version("flwr"), "startup": ends[0] - began, "rounds": [b - a for a, b in pairwise(ends)]}


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_for(holds, folder: Path) -> None:
    until = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"no result after {LIMIT:g} seconds: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--size", type=int, default=7850, help="float32 numbers of the model")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = deployed(Path(folder), given.parties, given.rounds, given.size)
    finally:
        end_all()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
