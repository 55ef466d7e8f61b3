"""The verbs together, what is said of a mistake, and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.logs import LogFormat
from atoll.core.errors import AtollError

app = typer.Typer(
    help="Federated learning: research it, decide on it, run it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

JobArgument = typer.Argument(metavar="[JOB]", help="a job file (.toml) or the name of an example")
JobName = Annotated[str, JobArgument]
Sets = Annotated[list[str] | None, typer.Option("--set", help="override a key of the job, as in method.lr=0.05")]
Slowest = Annotated[
    float, typer.Option(min=1.0, help="bytes a second of the slowest line that is waited for; the same on both sides")
]
Proxy = Annotated[
    str | None, typer.Option(metavar="http://HOST:PORT", help="HTTPS proxy; default: HTTPS_PROXY; none: no proxy")
]
Log = Annotated[LogFormat, typer.Option("--log", help="what is said on stderr: text, or JSON objects a line each")]


def known(error: Exception) -> str | None:
    """Return the sentence of an error that a person can act on; None for what is a fault of Atoll."""
    if isinstance(error, AtollError):
        return str(error)
    if hasattr(error, "format_message"):  # typer's own: some versions carry a copy of click
        return str(error.format_message())
    return None


@app.command()
def run(
    job: Annotated[str | None, JobArgument] = None,
    rounds: Annotated[int | None, typer.Option(help="how many rounds, instead of what the job says")] = None,
    seed: Annotated[int | None, typer.Option(help="the seed of everything random")] = None,
    out: Annotated[Path | None, typer.Option(help="where run folders go; default: runs")] = None,
    sets: Sets = None,
    resume: Annotated[Path | None, typer.Option(help="a run folder; resumes its run")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="processes; 0: this one; default: as many as help")] = None,
    loop: Annotated[bool, typer.Option("--loop", help="one party at a time; names the one that fails")] = False,
    protocols: Annotated[
        bool, typer.Option("--protocols", help="run the whole protocol of hidden sums, in this process")
    ] = False,
    on: Annotated[str | None, typer.Option(metavar="ray[://HOST:PORT]", help="train on a Ray cluster")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="also write TensorBoard events to this folder")] = None,
    mlflow: Annotated[str | None, typer.Option(help="also log to this MLflow experiment")] = None,
) -> None:
    """Train a job here or on a Ray cluster. Without JOB: FedAvg on real digits that come with the install."""
    from atoll.cli.run import run_job

    overrides = list(sets or [])
    overrides += [f"rounds={rounds}"] if rounds is not None else []
    overrides += [f"seed={seed}"] if seed is not None else []
    run_job(
        job, overrides, out, resume=resume, workers=workers, loop=loop, protocols=protocols, on=on,
        tensorboard=tensorboard, mlflow=mlflow,
    )  # fmt: skip


@app.command()
def explain(
    job: JobName = "digits",
    sets: Sets = None,
    deployed: Annotated[bool, typer.Option("--deployed", help="as atoll serve runs it, not as a simulation")] = False,
) -> None:
    """Say what a job would do, cost and reveal, before anything runs."""
    from atoll.cli.explain import explain_job

    explain_job(job, list(sets or []), deployed=deployed)


@app.command()
def calibrate(
    job: Annotated[str, typer.Argument(metavar="JOB", help="a job file (.toml) whose stages add noise")],
    epsilon: Annotated[float, typer.Option(help="the most that all rounds together may spend")],
    delta: Annotated[
        float | None, typer.Option(help="at this delta; default: 1e-5, or N^-1.1 for N parties if less")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="how many rounds, instead of what the job says")] = None,
    sets: Sets = None,
) -> None:
    """Say how much noise a job needs to stay within a privacy budget."""
    from atoll.cli.calibrate import calibrate_job

    overrides = [*(sets or []), *([f"rounds={rounds}"] if rounds is not None else [])]
    calibrate_job(job, overrides, epsilon, delta)


@app.command()
def report(folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")]) -> None:
    """Write a run's HTML report again."""
    from atoll.cli.report import report_run

    report_run(folder)


@app.command()
def compare(
    job: JobName = "digits",
    sets: Sets = None,
    seed: Annotated[int | None, typer.Option(help="the seed of everything random")] = None,
    json: Annotated[Path | None, typer.Option(help="also write the figures to this file")] = None,
) -> None:
    """Train a job alone, federated and pooled, and say whether it is worth federating."""
    from atoll.cli.compare import compare_job

    overrides = [*(sets or []), *([f"seed={seed}"] if seed is not None else [])]
    compare_job(job, overrides, json)


keys = typer.Typer(help="Keys of parties and servers.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys, name="key")


@keys.command("new")
def new_key(
    name: Annotated[str, typer.Argument(help="of the party or the server that the key is for")],
    folder: Annotated[Path, typer.Option(help="where NAME.key is written")] = Path("."),
) -> None:
    """Make a key, and print the line for the other side's roster."""
    from atoll.cli.network import new_key_file

    new_key_file(name, folder)


@app.command()
def serve(
    job: JobName,
    roster: Annotated[Path, typer.Option(help="a file of names and public keys, one party a line")],
    address: Annotated[str, typer.Option(help="host:port to listen on")] = "127.0.0.1:7100",
    own: Annotated[Path | None, typer.Option("--key", help="the server's key (atoll key)")] = None,
    next_key: Annotated[Path | None, typer.Option(help="the server's next key: parties are told to trust it")] = None,
    run: Annotated[Path, typer.Option(help="the run folder; resumes an unfinished run in it")] = Path("served"),
    parties: Annotated[int | None, typer.Option(min=1, help="begin with so many; default: all of the roster")] = None,
    patience: Annotated[
        float | None, typer.Option(help="seconds to wait for parties before the run fails; default: for ever")
    ] = None,
    linger: Annotated[
        float, typer.Option(min=0.001, help="seconds to wait, after the end, for parties that do not know it yet")
    ] = 60.0,
    deadline: Annotated[float, typer.Option(help="seconds that parties have for an answer")] = 600.0,
    slowest: Slowest = 32_000.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="no encryption; only on this machine")] = False,
    health: Annotated[str | None, typer.Option(metavar="127.0.0.1:PORT", help="/health and /metrics there")] = None,
    log: Log = LogFormat.text,
    sets: Sets = None,
) -> None:
    """Serve a job to real parties over the network."""
    from atoll.cli.network import serve_job

    serve_job(job, list(sets or []), address=address, roster=roster, key=own, next_key=next_key, run=run,
              parties=parties, patience=patience, linger=linger, deadline=deadline, slowest=slowest, insecure=insecure,
              health=health, form=log)  # fmt: skip


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="host:port of the server")],
    policy: Annotated[Path, typer.Option(help="what this party allows, and its data (TOML)")],
    server: Annotated[str, typer.Option(help="the server's line: its name and public key")] = "",
    own: Annotated[Path | None, typer.Option("--key", help="this party's key (atoll key)")] = None,
    folder: Annotated[Path, typer.Option(help="where this party keeps its audit log")] = Path("party"),
    insecure: Annotated[str | None, typer.Option(help="a name, instead of a key; only on this machine")] = None,
    patience: Annotated[
        float | None, typer.Option(help="seconds to try to reach the server before giving up; default: for ever")
    ] = None,
    slowest: Slowest = 32_000.0,
    proxy: Proxy = None,
    log: Log = LogFormat.text,
) -> None:
    """Take part in a served job with this party's own data."""
    from atoll.cli.network import join_job

    join_job(address, server=server, key=own, policy=policy, folder=folder, insecure=insecure, patience=patience,
             slowest=slowest, form=log, proxy=proxy)  # fmt: skip


@app.command()
def edge(
    parent: Annotated[str, typer.Argument(help="host:port of the server above")],
    server: Annotated[str, typer.Option(help="the line of the server above: its name and public key")],
    policy: Annotated[Path, typer.Option(help="what this edge allows (TOML); it has no data of its own")],
    roster: Annotated[Path, typer.Option(help="names and public keys of the parties below, one a line")],
    own: Annotated[Path | None, typer.Option("--key", help="this edge's key (atoll key)")] = None,
    address: Annotated[str, typer.Option(help="host:port to listen on for the parties below")] = "127.0.0.1:7101",
    folder: Annotated[Path, typer.Option(help="where this edge keeps its audit log and who is below")] = Path("edge"),
    parties: Annotated[int | None, typer.Option(min=1, help="begin with so many; default: all of the roster")] = None,
    first: Annotated[int, typer.Option(min=0, help="the number of the first party below")] = 0,
    proxy: Proxy = None,
    log: Log = LogFormat.text,
) -> None:
    """Stand between a server and parties: a server to them, a party to it."""
    from atoll.cli.network import edge_of

    edge_of(parent, server=server, key=own, policy=policy, folder=folder, address=address, roster=roster,
            parties=parties, first=first, form=log, proxy=proxy)  # fmt: skip


@app.command()
def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a server, a party or an edge")],
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Say how a served run is doing, or a party or an edge."""
    from atoll.cli.status import status_of

    status_of(run, as_json)


@app.command()
def stop(run: Annotated[Path, typer.Argument(metavar="RUN", help="the run folder of a server")]) -> None:
    """Stop a server and wait for its end; serving the same job again resumes the run."""
    from atoll.cli.status import stop_run

    stop_run(run)


@app.command("list")
def list_parts(
    kind: Annotated[str | None, typer.Argument(help="method, model, data, select, stage, …; default: all")] = None,
) -> None:
    """List every part that a job file can name: its purpose and its fields."""
    from atoll.cli.list import list_all

    list_all(kind)


@app.command()
def parts() -> None:
    """List the packages that bring parts of their own, with the digests that a party's policy allows them by."""
    from atoll.cli.parts import list_packages

    list_packages()


@app.command()
def migrate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="job files and policy files of release 0.1")],
    check: Annotated[bool, typer.Option("--check", help="only say what would change; exit code 1 if anything")] = False,
) -> None:
    """Rewrite job and policy files of release 0.1 with the current names. FILE.0.1 keeps each file as it was."""
    from atoll.cli.migrate import migrate_files

    migrate_files(files, check=check)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="of the job; NAME.toml is written here")],
    data: Annotated[str, typer.Option(help="the data set to start from")] = "digits",
) -> None:
    """Write a commented job file to start from."""
    from atoll.cli.new import new_job

    new_job(name, data)
