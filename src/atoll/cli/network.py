"""`atoll key`, `serve`, `join`: a job between organisations, from the command line."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from atoll.cli.exits import RunEnded
from atoll.cli.logs import LogFormat, log_note, speaking
from atoll.cli.overhear import overhearing
from atoll.core.errors import AtollError
from atoll.report.shown import shown

if TYPE_CHECKING:
    from atoll.job.file import JobFile
    from atoll.job.roles import RoleJob
    from atoll.runtimes.network.server.serve import Served
    from atoll.runtimes.network.server.serve_roles import RolesServed
    from atoll.runtimes.network.trust.roster import NamedIdentity


def new_key_file(name: str, folder: Path) -> None:
    """Make a key and print the line that lets its owner in."""
    from atoll.runtimes.network.trust.roster import line_of, new_key

    member = new_key(folder, name)
    sys.stdout.write(f"key    {folder / f'{name}.key'} (secret: it stays here)\nroster {line_of(member)}\n")


def serve_job(
    job: str, overrides: list[str], *, address: str, roster: Path, key: Path | None, next_key: Path | None, run: Path,
    parties: int | None,
    patience: float | None, linger: float, deadline: float, slowest: float, insecure: bool, health: str | None,
    form: LogFormat,
) -> None:  # fmt: skip
    """Serve a job file to the parties of a roster until it has ended."""
    from atoll.cli.run import Progress
    from atoll.job.catalogue import BadJob
    from atoll.job.file import load_any
    from atoll.job.roles import RoleJob
    from atoll.runtimes.network.messages.calls import Times
    from atoll.runtimes.network.server.monitor import last_said
    from atoll.runtimes.network.trust.roster import RosterFile
    from atoll.runtimes.network.trust.tls import Insecure, ServerTLS

    with overhearing(), speaking(form) as say:
        began = False

        def ready(at: str) -> None:
            nonlocal began
            began = True
            say("serving", f"serving at {at}; waiting for parties (atoll join)", address=at)
            if health:
                there = f"http://{last_said(run)['health']}"
                say("health", f"for monitors: {there}/health and {there}/metrics", address=there)

        def ended(done: Served | RolesServed) -> None:
            progress.close()
            report = done.run.report(run / "report.html")
            models = "".join(f"model  {path}\n" for path in sorted(run.glob("model*.safetensors")))
            sys.stdout.write(shown(f"ended: {done.reason}\nrun    {run}\n{models}report {report}\n"))
            sys.stdout.flush()

        said = load_any(job, overrides)
        file = RosterFile(roster)
        following = None if next_key is None else _key(next_key).identity.public
        credentials = Insecure("server") if insecure else ServerTLS(_key(key), file, following=following)
        if isinstance(said, RoleJob) and parties is not None:
            raise BadJob("--parties is for jobs with a method: a program needs all who play a role, leave it out")
        progress = Progress(said.rounds if isinstance(said, RoleJob) else said.job.rounds)
        _stop_kindly()
        try:
            _served(
                said, parties, address=address, credentials=credentials, roster=file.texts, folder=run,
                times=Times(
                    answer=deadline, patience=math.inf if patience is None else patience, linger=linger,
                    slowest=slowest),
                health=health, ready=ready, ended=ended, sinks=(progress if form is LogFormat.text else log_note,),
            )  # fmt: skip
        except KeyboardInterrupt:
            progress.close()
            say("stopped", f"stopped; nothing is lost. To resume, serve the same job with --run {quote(str(run))}")
            raise
        except AtollError as error:
            raise RunEnded(str(error)) if began else error from None
        finally:
            progress.close()


def _served(said: JobFile | RoleJob, parties: int | None, **settings: Any) -> None:
    """Serve a job of either kind."""
    from atoll.job.roles import RoleJob

    if isinstance(said, RoleJob):
        from atoll.runtimes.network.server.serve_roles import serve_roles

        serve_roles(said, **settings)
        return
    from atoll.data import build
    from atoll.runtimes.network.server.serve import serve

    serve(said.job, build(said.data, said.seed), said.seed, parties=parties, **settings)


def join_job(
    address: str, *, server: str, key: Path | None, policy: Path, folder: Path, insecure: str | None,
    patience: float | None, slowest: float, form: LogFormat, proxy: str | None = None,
) -> None:  # fmt: skip
    """Take part in a served job for as long as it lasts."""
    from atoll.runtimes.network.messages.calls import Times
    from atoll.runtimes.network.party.join import join
    from atoll.runtimes.network.party.policy import Policy
    from atoll.runtimes.network.trust.roster import key_text, peer_of
    from atoll.runtimes.network.trust.tls import Insecure, PartyTLS

    with speaking(form) as say:
        _stop_kindly()
        limits = Policy.load(policy)
        if insecure:
            credentials: Insecure | PartyTLS = Insecure(insecure)
            name, known = insecure, ""
        else:
            credentials = PartyTLS(_key(key), peer_of(server), folder)
            name, known = credentials.member.name, key_text(credentials.server.key)
        try:
            why = join(
                address, credentials, name, limits, folder, server=known, say=lambda text: say("told", text),
                times=Times(patience=math.inf if patience is None else patience, slowest=slowest),
                proxy=proxy,
            )  # fmt: skip
        except KeyboardInterrupt:
            say("stopped", "stopped; joining again with the same key and folder resumes")
            raise
        say("ended", f"ended: {why}", reason=why)


def edge_of(
    parent: str, *, server: str, key: Path | None, policy: Path, folder: Path, address: str, roster: Path,
    parties: int | None, first: int, form: LogFormat, proxy: str | None = None,
) -> None:  # fmt: skip
    """Stand between a server and the parties of a roster for as long as the job lasts."""
    from atoll.runtimes.network.edge import Downstream, edge
    from atoll.runtimes.network.party.policy import Policy
    from atoll.runtimes.network.trust.roster import RosterFile, key_text, peer_of
    from atoll.runtimes.network.trust.tls import PartyTLS, ServerTLS

    with overhearing(), speaking(form) as say:
        _stop_kindly()
        limits, file = Policy.load(policy), RosterFile(roster)
        up = PartyTLS(_key(key), peer_of(server), folder)
        below = Downstream(
            address, ServerTLS(up.member, file),
            file.texts, parties, first,
        )  # fmt: skip
        try:
            why = edge(
                parent, up, up.member.name, limits, folder, below, server=key_text(up.server.key),
                say=lambda text: say("told", text), proxy=proxy,
                ready=lambda at: say("serving", f"serving at {at}; waiting for parties (atoll join)", address=at),
            )  # fmt: skip
        except KeyboardInterrupt:
            say("stopped", "stopped; its parties wait until it is started again with the same key and folder")
            raise
        say("ended", f"ended: {why}", reason=why)


def _key(path: Path | None) -> NamedIdentity:
    from atoll.job.catalogue import BadJob
    from atoll.runtimes.network.trust.roster import load_key

    if path is None:
        raise BadJob("--key names the key of this side: atoll key new NAME makes one")
    try:
        return load_key(path)
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
