"""Three hospitals learn together and show each other nothing: real processes, real keys, a secure sum, on this machine.

A server and three `atoll join` are started on the loopback address, as they would be in four places. Each hospital has
a file of its own patients (the Wisconsin breast-cancer table that comes with scikit-learn, dealt unequally), a key, and
a policy that asks for a secure sum: the server gets sums of all three and reads no hospital's vector. At the end each
hospital's own model stands beside the common one. Without --keep only the report stays, as three_hospitals.html.

    python examples/three_hospitals.py [--rounds 20] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

import atoll
from atoll.cli.status import status
from atoll.data.federated import Federated

HOSPITALS = ("north", "harbour", "university")
ATOLL = [sys.executable, "-c", "from atoll.cli import main; main()"]
DATA = {"use": "breast_cancer", "clients": 3, "by": "dirichlet", "alpha": 0.3, "seed": 0}
JOB = """
name = "three-hospitals"
rounds = {rounds}
data = {{ use = "breast_cancer", clients = 3, by = "dirichlet", alpha = 0.3, seed = 0 }}
method = {{ use = "fedavg", model = "softmax", epochs = 2, batch = 16, lr = 0.05 }}
select = "all"
stages = [{{ use = "clip", norm = 1.0 }}, {{ use = "average" }}, {{ use = "ring", bits = 16 }}]
combine = "secure_sum"
"""
POLICY = """
require = ["secure_sum"]
roster = "roster"
max_rounds = {rounds}
data = {{ use = "csv", path = "patients.csv", target = "benign", holdout = 0.0, clients = 1 }}
"""


class Ended(Exception):
    """A process ended that should not have; its log says why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="a new folder for keys, files, logs and the run, to look around in")
    args = parser.parse_args()
    try:
        learn(args.rounds, args.keep)
    except KeyboardInterrupt:
        sys.exit("stopped; every process was ended")
    except Ended as why:
        sys.exit(str(why))


def learn(rounds: int, keep: Path | None) -> None:
    """Do all of it, in a folder to keep or in one that goes away."""
    console, began = Console(), time.monotonic()
    with ExitStack() as stack:
        temporary = None if keep else stack.enter_context(tempfile.TemporaryDirectory(prefix="three-hospitals-"))
        folder = (keep or Path(temporary or "")).resolve()
        data = atoll.data.build(DATA)
        prepare(folder, data, rounds)
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(end, processes)  # also on Ctrl-C, and before the folder goes
        follow(folder, processes, console)
        seconds = time.monotonic() - began
        report = folder / "server" / "run" / "report.html"
        if temporary:
            report = Path(shutil.copy(report, "three_hospitals.html")).resolve()
        console.print(compared(folder, data, rounds))
        console.print(f"{seconds:.0f} s from the first key to the last round; the report: {report}", soft_wrap=True)


def prepare(folder: Path, data: Federated, rounds: int) -> None:
    """Give everybody a key, each hospital its patients and its policy, the server the job and the roster."""
    names = data.features or tuple(f"x{k}" for k in range(data.train.x.shape[1]))
    roster = ""
    for name in ("server", *HOSPITALS):
        command = [*ATOLL, "key", "new", name, "--folder", str(folder / name)]
        made = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 # our own words
        line = re.search(r"^roster (.*)$", made.stdout, re.M)
        assert line
        (folder / name / "line").write_text(line[1])
        roster += f"{line[1]}\n" if name in HOSPITALS else ""
    # Everybody has everybody's line: a secure sum hides a vector among parties whose keys one knows oneself.
    for name in ("server", *HOSPITALS):
        (folder / name / "roster").write_text(roster)
    (folder / "server" / "job.toml").write_text(JOB.format(rounds=rounds))
    for k, name in enumerate(HOSPITALS):
        x, y = data.train[k]
        rows = np.column_stack([x, y])
        header = ",".join([*(n.replace(" ", "_") for n in names), "benign"])
        np.savetxt(folder / name / "patients.csv", rows, "%.9g", ",", header=header, comments="")
        (folder / name / "policy.toml").write_text(POLICY.format(rounds=rounds))


def start(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        command = [*ATOLL, *args]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 # our own words


def follow(folder: Path, processes: list[subprocess.Popen[bytes]], console: Console) -> None:
    """Start all four and show how it goes until the server has ended."""
    home = folder / "server"
    server = start(home, "serve", "job.toml", "--roster", "roster", "--key", "server.key",
                   "--address", "127.0.0.1:0", "--run", "run")  # fmt: skip
    processes.append(server)
    while not (found := re.search(r"serving at (\S+);", (home / "log").read_text())):
        alive("server", server, folder)
        time.sleep(0.05)
    pin = (home / "line").read_text()
    told = ("join", found[1], "--server", pin, "--policy", "policy.toml")
    processes.extend(start(folder / name, *told, "--key", f"{name}.key") for name in HOSPITALS)
    with Live(console=console, refresh_per_second=4) as live:
        while server.poll() is None:
            for name, process in zip(HOSPITALS, processes[1:], strict=True):
                if process.poll():
                    alive(name, process, folder)
            live.update(seen(status(home / "run")))
            time.sleep(0.25)
        live.update(seen(status(home / "run")))
    console.print()
    if server.returncode:
        alive("server", server, folder)


def alive(name: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.poll() is not None:
        raise Ended(f"{name} ended with {process.returncode}:\n{(folder / name / 'log').read_text()[-2000:]}")


def seen(now: dict[str, Any]) -> Group:
    """Draw a status: a bar of rounds, and who is there."""
    row = Table.grid(padding=(0, 2))
    row.add_row("rounds", ProgressBar(now["rounds"], now["round"], width=40), f"{now['round']} of {now['rounds']}")
    waiting = {name for question in now["questions"] for name in question["late"]}
    for name in HOSPITALS:
        party = now["parties"].get(name)
        there = "not there yet" if party is None else "connected" if party["connected"] else "done"
        row.add_row(name, "at work" if name in waiting else there, "")
    return Group(f"{now['state']} {now['reason']}", row)


def compared(folder: Path, data: Federated, rounds: int) -> Table:
    """Set each hospital's own model beside the common one, on the same patients whom nobody trained on."""
    job = atoll.Job(
        atoll.FedAvg(atoll.models.softmax(), epochs=2, batch=16, lr=0.05), atoll.All(), rounds=rounds, eval_every=rounds
    )
    alone = atoll.compare(job, data).alone_all
    facts = [json.loads(line) for line in (folder / "server" / "run" / "facts.jsonl").read_text().splitlines()]
    together = [fact["accuracy"] for fact in facts if fact["what"] == "evaluation"][-1]
    table = Table(title=f"right on {data.test.sizes.sum() if data.test else 0} patients of the common test set")
    for column in ("hospital", "own patients", "alone", "together", "sent"):
        table.add_column(column, justify="left" if column == "hospital" else "right")
    for k, name in enumerate(HOSPITALS):
        audit = (folder / name / "party" / "audit.jsonl").read_text().splitlines()
        sent = sum(json.loads(line).get("bytes", 0) for line in audit)
        table.add_row(
            name, str(data.train.sizes[k]), f"{alone[k]:.1%}", f"{together:.1%}", f"{sent / 1000:.1f} kB"
        )  # fmt: skip
    return table


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Leave nothing running."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
