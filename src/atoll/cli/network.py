"""`atoll key`, `serve`, `join`: a job between organisations, from the command line."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from atoll.cli.logs import Form, log_note, speaking
from atoll.cli.overhear import overhearing


def new_key_file(name: str, folder: Path) -> None:
    """Make a key and print the line that lets its owner in."""
    from atoll.runtimes.network.roster import line_of, new_key

    member = new_key(folder, name)
    sys.stdout.write(f"key    {folder / f'{name}.key'} (secret: it stays here)\nroster {line_of(member)}\n")


def serve_job(
    job: str, overrides: list[str], *, address: str, roster: Path, key: Path | None, run: Path, parties: int | None,
    patience: float, deadline: float, insecure: bool, health: str | None, form: Form,
) -> None:  # fmt: skip
    """Serve a job file to the parties of a roster until it has ended."""
    from atoll.cli.run import Progress
    from atoll.data import build
    from atoll.jobfile import load
    from atoll.runtimes.network.calls import Times
    from atoll.runtimes.network.roster import RosterFile, load_key
    from atoll.runtimes.network.tls import Insecure, ServerSide
    from atoll.runtimes.network.watch import last_said
    from atoll.serve import serve

    with overhearing(), speaking(form) as say:

        def ready(at: str) -> None:
            say("serving", f"serving at {at}; waiting for parties (atoll join)", address=at)
            if health:
                there = f"http://{last_said(run)['health']}"
                say("health", f"for monitors: {there}/health and {there}/metrics", address=there)

        said = load(job, overrides)
        file = RosterFile(roster)
        credentials: Any = Insecure("server") if insecure else ServerSide(_key(key, load_key), file)
        progress = Progress(said.job.rounds)
        _stop_kindly()
        try:
            done = serve(
                said.job, build(said.data, said.seed), said.seed, address=address, credentials=credentials,
                roster=lambda: file.now().texts, folder=run,
                parties=parties, times=Times(answer=deadline, patience=patience), health=health, ready=ready,
                sinks=(progress if form is Form.text else log_note,),
            )  # fmt: skip
        except KeyboardInterrupt:
            progress.close()
            say("stopped", f"stopped; nothing is lost. Go on by serving the same job with --run {run}")
            raise
        finally:
            progress.close()
        report = done.run.report(run / "report.html")
    sys.stdout.write(f"ended: {done.reason}\nrun    {run}\nmodel  {run / 'model.safetensors'}\nreport {report}\n")


def join_job(
    address: str, *, server: str, key: Path | None, policy: Path, folder: Path, insecure: str | None, form: Form
) -> None:
    """Take part in a served job for as long as it lasts."""
    from atoll.join import join
    from atoll.runtimes.network.policy import Policy
    from atoll.runtimes.network.roster import key_text, load_key, peer_of
    from atoll.runtimes.network.tls import Insecure, PartySide

    with speaking(form) as say:
        _stop_kindly()
        limits = Policy.load(policy)
        if insecure:
            credentials: Any = Insecure(insecure)
            name, known = insecure, ""
        else:
            credentials = PartySide(_key(key, load_key), peer_of(server))
            name, known = credentials.member.name, key_text(credentials.server.key)
        try:
            why = join(address, credentials, name, limits, folder, server=known, say=lambda text: say("told", text))
        except KeyboardInterrupt:
            say("stopped", "stopped; joining again with the same key and folder goes on")
            raise
        say("ended", f"ended: {why}", reason=why)


def edge_of(
    parent: str, *, server: str, key: Path | None, policy: Path, folder: Path, address: str, roster: Path,
    parties: int | None, first: int, form: Form,
) -> None:  # fmt: skip
    """Stand between a server and the parties of a roster for as long as the job lasts."""
    from atoll.edge import Below, edge
    from atoll.runtimes.network.policy import Policy
    from atoll.runtimes.network.roster import RosterFile, key_text, load_key, peer_of
    from atoll.runtimes.network.tls import PartySide, ServerSide

    with overhearing(), speaking(form) as say:
        _stop_kindly()
        limits, file = Policy.load(policy), RosterFile(roster)
        up = PartySide(_key(key, load_key), peer_of(server))
        below = Below(
            address, ServerSide(up.member, file),
            lambda: file.now().texts, parties, first,
        )  # fmt: skip
        why = edge(
            parent, up, up.member.name, limits, folder, below, server=key_text(up.server.key),
            say=lambda text: say("told", text),
            ready=lambda at: say("serving", f"serving at {at}; waiting for parties (atoll join)", address=at),
        )  # fmt: skip
        say("ended", f"ended: {why}", reason=why)


def _key(path: Path | None, load: Any) -> Any:
    from atoll.catalogue import BadJob

    if path is None:
        raise BadJob("--key names the key of this side: atoll key new NAME makes one")
    try:
        return load(path)
    except OSError as error:
        raise BadJob(str(error)) from None


def _stop_kindly() -> None:
    """Let a polite end be one: the first SIGTERM stops as Ctrl-C does, a second one ends the process at once."""
    me = os.getpid()

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != me:  # a forked child has this handler too, and should just end
            os.kill(os.getpid(), signal.SIGTERM)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
