"""`atoll run`: train a job, show how it goes, end by naming what was written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from atoll.core.effects import Note
from atoll.job.file import JobFile, any_from_table, load_any
from atoll.job.roles import RoleJob


def run_job(
    job: str | None, overrides: list[str], out: Path | None, *, resume: Path | None, workers: int | None, loop: bool,
    protocols: bool, on: str | None, tensorboard: Path | None, mlflow: str | None,
) -> None:  # fmt: skip
    """Run a job file, or resume a run folder."""
    from atoll.core.errors import Unwritable

    others = [*([job] if job else []), *(["--out"] if out else []), *overrides]
    said = _resumed(resume, others) if resume else load_any(job or "digits", overrides)
    train = _roles_trainer(on, workers, loop) if isinstance(said, RoleJob) else _trainer(on, workers, loop, protocols)
    out = out or Path("runs")
    _writable(out if resume is None else resume, Unwritable)
    work, rounds = _work(said, train)
    progress = Progress(rounds)
    sinks: list[Any] = [progress]
    if tensorboard:
        from atoll.journal.sinks import tensorboard as to_tensorboard

        sinks.append(to_tensorboard(tensorboard))
    if mlflow:
        from atoll.journal.sinks import mlflow as to_mlflow

        sinks.append(to_mlflow(mlflow))
    try:
        run = work(out=out, resume=resume, sinks=tuple(sinks))
    except KeyboardInterrupt:
        progress.close()
        folder = progress.folder or resume
        again = f"stopped; nothing is lost. Go on with: atoll run --resume {quote(str(folder))}\n"
        sys.stderr.write(f"\n{again}" if folder else "\n")
        raise
    finally:
        for sink in sinks:
            sink.close()
    assert run.folder
    try:
        report = run.report(run.folder / "report.html")
    except OSError as reason:
        remedy = f"free some space, then: atoll report {quote(str(run.folder))}"
        raise Unwritable(f"cannot write {run.folder}/report.html: {reason.strerror}; {remedy}") from None
    models = "".join(f"model  {path}\n" for path in sorted(run.folder.glob("model*.safetensors")))
    sys.stdout.write(f"ended: {run.reason}\nrun    {run.folder}\n{models}report {report}\n")


def _work(said: JobFile | RoleJob, train: Callable[..., Any]) -> tuple[Callable[..., Any], int]:
    """Return what runs a job of either kind, given where to, and its number of rounds."""
    if isinstance(said, RoleJob):
        return partial(train, said), said.rounds
    from atoll.data import build

    return partial(train, said.job, build(said.data, said.seed), said.seed), said.job.rounds


def _roles_trainer(on: str | None, workers: int | None, loop: bool) -> Callable[..., Any]:
    from atoll.job.catalogue import BadJob
    from atoll.runtimes.roles.simulate import simulate_roles

    for option, given in (("--on", on is not None), ("--workers", workers is not None), ("--loop", loop)):
        if given:
            raise BadJob(f"{option} is for jobs with a method: a program with roles runs in one process, leave it out")
    return simulate_roles


def _trainer(on: str | None, workers: int | None, loop: bool, protocols: bool) -> Callable[..., Any]:
    """Return what trains: this machine, or the Ray cluster that --on names."""
    from atoll.job.catalogue import BadJob
    from atoll.runtimes.run import on_ray, simulate

    if loop and workers:
        raise BadJob(f"--loop asks one party at a time, in this process: leave out --workers {workers}")
    if on is None:
        return partial(simulate, workers=workers, loop=loop, protocols=protocols)
    if on != "ray" and on.removeprefix("ray://") in ("", on):
        raise BadJob(f"--on {on}: say ray (a cluster of this machine), ray://auto or ray://HOST:PORT")
    if loop or workers == 0:
        raise BadJob(f"--on {on} is for many actors: leave out {'--loop' if loop else '--workers 0'}")
    address = {"ray": None, "ray://auto": "auto"}.get(on, on)
    return partial(on_ray, workers=workers, address=address, protocols=protocols)


def _resumed(folder: Path, others: list[str]) -> JobFile | RoleJob:
    from atoll.job.catalogue import BadJob
    from atoll.journal import reopen

    if others:
        raise BadJob(f"--resume resumes {folder} with its job.toml as it is: leave out {others[0].split('=')[0]}")
    return any_from_table(reopen(folder).job)


def _writable(out: Path, error: type[OSError]) -> None:
    """Find out before training, not after, that nothing can be written."""
    import tempfile

    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as reason:
        raise error(f"cannot write to {out}: {reason.strerror}; choose another folder with --out") from None


class Progress:
    """Show a run as it goes: a live line on a terminal, plain lines elsewhere."""

    def __init__(self, rounds: int, stream: Any = None) -> None:
        self._rounds, self._stream, self._done = rounds, stream or sys.stderr, 0
        self._live: Any = None
        self._task: Any = None
        self._metrics: dict[str, float] = {}
        self._better: tuple[str, ...] = ()
        self._said = 0.0
        self.folder: Path | None = None

    def __call__(self, note: Note) -> None:
        show: dict[str, Callable[[Any], None]] = {
            "start": self._start, "resume": self._start, "evaluation": self._evaluate, "round": self._round,
            "folder": self._name,
            "end": self._end, "damaged": self._damaged,
        }  # fmt: skip
        if note.what in show:
            show[note.what](note.facts)

    def _name(self, facts: Any) -> None:
        self.folder = Path(facts["path"])

    def _damaged(self, facts: Any) -> None:
        self._stream.write(f"{facts['why']}\n")

    def _start(self, facts: Any) -> None:
        done = self._done = facts["round"]
        self._better = tuple(facts.get("better", ()))
        if "job" in facts:
            from atoll.report.units import count

            job, many, rounds = facts["job"], count(facts["parties"], "party"), count(facts["job"]["rounds"], "round")
            if "program" in job:
                played = ", ".join(f"{role} = {name}" for role, name in job["roles"].items())
                self._stream.write(f"{job['name']}: {job['program']['use']}, {played}, {rounds}\n")
            else:
                self._stream.write(
                    f"{job['name']}: {job['method']['use']}, {many} ({facts['cohort']} a round), "
                    f"{facts['parameters']:,} parameters sent and received per party, {rounds}\n"
                )
                self._stream.write("".join(f"note: {line}\n" for line in facts.get("at_will", ())))
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            words = TextColumn("{task.description}")
            columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), words)
            self._live = Bar(*columns, console=Console(file=self._stream))
            self._task = self._live.add_task("", total=self._rounds, completed=done)
            self._live.start()

    def _evaluate(self, facts: Any) -> None:
        shown = next((name for name in ("accuracy", "r2", *self._better, "loss") if name in facts), None)
        if shown is not None:
            self._metrics[f"{facts['split']}.{shown}"] = facts[shown]
        self._show(live_only=True)

    def _round(self, facts: Any) -> None:
        from atoll.journal import rounds_done

        self._show()  # the round before, with what was seen after it
        self._done = rounds_done([{"what": "round", **facts}])

    def _end(self, facts: Any) -> None:
        self._said = 0.0
        self._show()

    def _show(self, live_only: bool = False) -> None:
        import time

        words = "  ".join(f"{name} {value:.4f}" for name, value in self._metrics.items())
        if self._live:
            self._live.update(self._task, completed=self._done, description=words)
        elif not live_only and (self._done or words) and time.monotonic() - self._said >= 1.0:
            self._said = time.monotonic()
            self._stream.write(f"round {self._done}/{self._rounds}  {words}".rstrip() + "\n")
            self._stream.flush()

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None
