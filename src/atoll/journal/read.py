"""Read a run folder back: the job, the facts, the newest whole checkpoint. Nothing here runs anything.

A folder says its format in a file of one line. Folders of release 0.1 have none: they are format 1. Their words are
translated here, so that whoever reads a record knows only today's.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll.core.effects import number
from atoll.core.errors import AtollError
from atoll.core.tree import Tree, nest
from atoll.job.migrate import migrate
from atoll.job.renames import METRICS

FORMAT = 2
CHECKPOINTS = {1: "keep", 2: "checkpoints"}  # by format
# What facts of release 0.1 call things.
FACTS = {"look": "evaluation"}
FIELDS = {"room": "split", "moved": "update_norm", "unopened": "aborted"}
SPLITS = {old.rstrip("."): new.rstrip(".") for old, new in METRICS.items()}


class NoRun(AtollError, FileNotFoundError):
    """The folder is no run."""

    code = "no_run"


class OtherFormat(AtollError, ValueError):
    """The folder holds a run in a format that this release cannot read, or cannot resume."""

    code = "other_format"


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder describes it.

    Args:
        folder: the run folder.
        job: the job, as in job.toml.
        facts: the recorded facts.
        format: number of the format of the folder. Default: that of this release.

    Example:
        >>> from pathlib import Path
        >>> from atoll.journal import RunRecord
        >>> RunRecord(Path("run"), {}, [{"what": "round", "round": 1}, {"what": "end"}]).until(1)
        [{'what': 'round', 'round': 1}]
    """

    folder: Path
    job: dict[str, object]
    facts: list[dict[str, object]]
    format: int = FORMAT

    def until(self, t: int) -> list[dict[str, object]]:
        """Return the facts up to round t, as a run that resumes there has them."""
        return [f for f in self.facts if f["what"] != "end" and (number(f, "round") or 0) <= t]

    def memory(self) -> Tree | None:
        """Return the newest checkpoint that is whole, or None."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        for path in sorted((self.folder / CHECKPOINTS[self.format]).glob("*.safetensors"), reverse=True):
            try:
                return nest(load_file(path))
            except (SafetensorError, OSError, ValueError):
                continue  # torn by a crash: the one before it is whole
        return None


def read(folder: str | Path) -> RunRecord:
    """Read a run folder of this release or of release 0.1; old names are translated.

    Args:
        folder: the run folder.

    Example:
        >>> import tempfile
        >>> import atoll
        >>> from atoll.journal import read
        >>> data = atoll.data.load("wine").split(5, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=2)
        >>> run = atoll.simulate(job, data, out=tempfile.mkdtemp())
        >>> read(run.folder).facts[-1]["reason"]
        'all 2 rounds done'
    """
    folder = Path(folder)
    if not (folder / "job.toml").is_file():
        raise NoRun(f"{folder} is no run folder (it has no job.toml): runs are named at the end of atoll run")
    written = format_of(folder)
    job = tomllib.loads((folder / "job.toml").read_text(encoding="utf-8"))
    found = facts(folder / "facts.jsonl")
    if written == 1:
        served = (folder / "status.json").is_file()
        job, found = migrate(job), [_today(fact, served=served) for fact in found]
    return RunRecord(folder, job, found, written)


def reopen(folder: str | Path) -> RunRecord:
    """Read a run folder to resume its run. Folders of other formats are refused.

    Args:
        folder: the run folder.

    Example:
        >>> import tempfile
        >>> import atoll
        >>> from atoll.journal import reopen
        >>> data = atoll.data.load("wine").split(5, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=2)
        >>> run = atoll.simulate(job, data, out=tempfile.mkdtemp())
        >>> int(reopen(run.folder).memory()["t"])
        2
    """
    record = read(folder)
    if record.format != FORMAT:
        raise OtherFormat(
            f"{folder} holds a run of release 0.1, which this release cannot resume: atoll report {folder} shows it, "
            "or start the job anew in another folder"
        )
    return record


def format_of(folder: Path) -> int:
    """Return the format of a run folder; refuse one that this release does not know."""
    file = folder / "format"
    if not file.is_file():
        return 1
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise OtherFormat(f"{file} says {text[:20]!r} and not a format number: restore the run folder from a copy")
    if int(text) > FORMAT:
        raise OtherFormat(
            f"{folder} has format {int(text)}, and this release reads up to {FORMAT}: "
            "upgrade with pip install --upgrade atoll"
        )
    return int(text)


def _today(fact: dict[str, object], *, served: bool) -> dict[str, object]:
    """Say a fact of release 0.1 with the current names."""
    said = {FIELDS.get(name, name): value for name, value in fact.items()}
    what, split, job = str(fact["what"]), said.get("split"), said.get("job")
    said["what"] = FACTS.get(what, what)
    if isinstance(split, str):
        said["split"] = SPLITS.get(split, split)
    if isinstance(job, Mapping):
        said["job"] = migrate(job)
    if what == "start":  # what it measured was not declared
        said["better"] = {"mse": "low", "r2": "high", "accuracy": "high", "loss": "low"}
        said["simulated"] = not served
        seen = said.get("seen")
        if served and isinstance(seen, Mapping):  # it noted some things as if all parties were on one machine
            said |= {"seen": {who: what for who, what in seen.items() if who != "network"}, "partition": []}
    return said


def facts(path: Path) -> list[dict[str, object]]:
    """Read facts; a torn last line is ignored, and what a resumed run did again is taken from the later time."""
    kept: list[dict[str, object]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            fact = json.loads(line)
        except ValueError:
            continue
        if fact.get("what") == "start":  # nothing was kept before it: all was done again
            kept = []
        if fact.get("what") == "resume":
            kept = [f for f in kept if f.get("round", 0) <= fact["round"] and f["what"] != "end"]
        kept.append(fact)
    return kept
