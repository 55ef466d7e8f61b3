"""`atoll key`, `serve`, `join`, `status`, `stop`: a job between organisations, from the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def new_key_file(name: str, folder: Path) -> None:
    """Make a key and print the line that lets its owner in."""
    from atoll.runtimes.network.roster import line_of, new_key

    member = new_key(folder, name)
    sys.stdout.write(f"key    {folder / f'{name}.key'} (secret: it stays here)\nroster {line_of(member)}\n")


def serve_job(
    job: str, overrides: list[str], *, address: str, roster: Path, key: Path | None, run: Path, parties: int | None,
    patience: float, insecure: bool,
) -> None:  # fmt: skip
    """Serve a job file to the parties of a roster until it has ended."""
    from atoll.cli.run import Progress
    from atoll.data import build
    from atoll.jobfile import load
    from atoll.runtimes.network.roster import RosterFile, key_text, load_key
    from atoll.runtimes.network.tls import Insecure, ServerSide
    from atoll.serve import serve

    said = load(job, overrides)
    file = RosterFile(roster)
    credentials: Any = Insecure("server") if insecure else ServerSide(_key(key, load_key), file)
    progress = Progress(said.job.rounds)
    _stop_kindly()
    run.mkdir(parents=True, exist_ok=True)
    (run / "server.pid").write_text(str(os.getpid()))
    try:
        done = serve(
            said.job, build(said.data, said.seed), said.seed, address=address, credentials=credentials,
            roster=lambda: [(name, key_text(k)) for k, name in file.now().names.items()], folder=run,
            parties=parties, patience=patience, sinks=(progress,),
            ready=lambda at: _say(f"serving at {at}; waiting for parties (atoll join)"),
        )  # fmt: skip
    except KeyboardInterrupt:
        _say(f"stopped; nothing is lost. Go on by serving the same job with --run {run}")
        raise
    finally:
        progress.close()
        (run / "server.pid").unlink(missing_ok=True)
    report = done.run.report(run / "report.html")
    sys.stdout.write(f"ended: {done.reason}\nrun    {run}\nmodel  {run / 'model.safetensors'}\nreport {report}\n")


def join_job(address: str, *, server: str, key: Path | None, policy: Path, folder: Path, insecure: str | None) -> None:
    """Take part in a served job for as long as it lasts."""
    from atoll.join import join
    from atoll.runtimes.network.policy import Policy
    from atoll.runtimes.network.roster import load_key, peer_of
    from atoll.runtimes.network.tls import Insecure, PartySide

    _stop_kindly()
    limits = Policy.load(policy)
    if insecure:
        credentials: Any = Insecure(insecure)
        name = insecure
    else:
        credentials = PartySide(_key(key, load_key), peer_of(server))
        name = credentials.member.name
    why = join(address, credentials, name, limits, folder, server=server, say=_say)
    _say(f"ended: {why}")


def status_of(run: Path, as_json: bool) -> None:
    """Say how a served run is doing, from its journal."""
    from atoll.journal import read

    facts = read(run).facts
    rounds = [f for f in facts if f["what"] == "round"]
    there: dict[str, bool] = {}
    for fact in facts:
        if fact["what"] in ("joined", "left"):
            there[fact["party"]] = fact["what"] == "joined"
    end = next((f for f in reversed(facts) if f["what"] == "end"), None)
    running = _pid(run) is not None
    said: dict[str, Any] = {
        "state": "finished" if end else "running" if running else "stopped",
        "round": rounds[-1]["round"] if rounds else 0,
        "rounds": read(run).job.get("rounds"),
        "parties": there,
        "rejected": [f for f in facts if f["what"] == "rejected"][-10:],
        "reason": end["reason"] if end else "",
    }
    if as_json:
        sys.stdout.write(json.dumps(said) + "\n")
        return
    sys.stdout.write(f"{said['state']}: round {said['round']} of {said['rounds']} {said['reason']}\n")
    for party, here in there.items():
        sys.stdout.write(f"  {party}: {'joined' if here else 'left'}\n")
    for fact in said["rejected"]:
        sys.stdout.write(f"  rejected: {fact['party']}: {fact['why']}\n")


def stop_run(run: Path) -> None:
    """Ask a server to stop; what it has done is kept."""
    from atoll.catalogue import BadJob

    pid = _pid(run)
    if pid is None:
        raise BadJob(f"{run}: no server is running there")
    os.kill(pid, signal.SIGTERM)
    sys.stdout.write(f"asked the server of {run} to stop\n")


def _pid(run: Path) -> int | None:
    with suppress(OSError, ValueError):
        pid = int((run / "server.pid").read_text())
        os.kill(pid, 0)
        return pid
    return None


def _key(path: Path | None, load: Any) -> Any:
    from atoll.catalogue import BadJob

    if path is None:
        raise BadJob("--key names the key of this side: atoll key new NAME makes one")
    try:
        return load(path)
    except OSError as error:
        raise BadJob(str(error)) from None


def _stop_kindly() -> None:
    """Let a polite end be one: SIGTERM stops as Ctrl-C does."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
