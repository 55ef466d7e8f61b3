"""Read a run folder back: the job, the facts, the newest whole checkpoint. Nothing here runs anything.

A folder says its format in a file of one line. Folders of release 0.1 have none: they are format 1. Their words are
translated here, so that whoever reads a record knows only today's.

Whatever is damaged or lost is left out or taken from elsewhere in the folder, and said in a sentence: the facts have
the job, too, and there are two checkpoints.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from atoll.core.effects import number
from atoll.core.errors import AtollError
from atoll.core.tree import Tree
from atoll.job.migrate import migrate
from atoll.job.renames import METRICS
from atoll.journal.sealed import Damaged, load, unseal

FORMAT = 2
_COUNTED = ("start", "resume", "round", "empty", "evaluation", "end")  # facts whose `round` counts rounds
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


class Past(NamedTuple):
    """What a run goes on from; of a new one, nothing.

    Args:
        memory: the newest checkpoint that is whole, if any. Default None.
        facts: what was noted up to it. Default none.
        damaged: sentences, one for each thing that was found damaged or lost. Default none.

    Example:
        >>> from atoll.journal import Past
        >>> Past().rounds
        0
    """

    memory: Tree | None = None
    facts: tuple[dict[str, object], ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return _rounds(self.memory) if self.memory else 0


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder describes it.

    Args:
        folder: the run folder.
        job: the job, as in job.toml.
        facts: the recorded facts.
        format: number of the format of the folder. Default: that of this release.
        damaged: a sentence for each thing that was found damaged or lost. Default: none.

    Example:
        >>> from pathlib import Path
        >>> from atoll.journal import RunRecord
        >>> RunRecord(Path("run"), {}, [{"what": "round", "round": 1}, {"what": "end"}]).done()
        1
    """

    folder: Path
    job: dict[str, object]
    facts: list[dict[str, object]]
    format: int = FORMAT
    damaged: tuple[str, ...] = ()

    def done(self) -> int:
        """Return how many rounds were done, as the facts say; at least one if there is a checkpoint after the first."""
        return rounds_done(self.facts) or int(any(path.stem.strip("0") for path in self._checkpoints()))

    def memory(self) -> Tree | None:
        """Return the newest checkpoint that is whole, or None."""
        return self.past().memory

    def past(self, fits: Callable[[Tree], None] = lambda _: None) -> Past:
        """Return what the run goes on from: the newest checkpoint that is whole, and the facts up to it.

        Args:
            fits: raises Damaged for a checkpoint whose other files are not whole. Default: there are none.
        """
        damaged = list(self.damaged)
        for path in reversed(self._checkpoints()):
            try:
                memory = load(path, sealed=self.format > 1)
                fits(memory)
            except Damaged as reason:
                damaged.append(str(reason))
                continue
            facts = until(self.facts, _rounds(memory), unseen="unseen" in memory)
            return Past(memory, tuple(facts), tuple(damaged))
        return Past(None, (), tuple(damaged))

    def _checkpoints(self) -> list[Path]:
        return sorted((self.folder / CHECKPOINTS[self.format]).glob("*.safetensors"))


def rounds_done(facts: Iterable[Mapping[str, object]]) -> int:
    """Return how many rounds facts say are done; one whose fact has `complete: false` is asked again, or goes on.

    Args:
        facts: of a run, as `RunRecord.facts` has them.

    Example:
        >>> from atoll.journal import rounds_done
        >>> rounds_done([{"what": "round", "round": 1}, {"what": "round", "round": 2, "complete": False}])
        1
    """
    said = [fact for fact in facts if fact["what"] in _COUNTED]
    return max(
        (int(number(f, "round") or 0) - (f["what"] != "end" and f.get("complete") is False) for f in said), default=0
    )


def _rounds(memory: Tree) -> int:
    return int(memory.get("rounds", memory["t"]))  # a checkpoint of release 0.1 counts nothing else


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
    written = format_of(folder)
    found, damaged = facts(folder / "facts.jsonl", sealed=written > 1)
    if not found and any((folder / CHECKPOINTS[written]).glob("*.safetensors")):
        damaged.append(f"{folder}/facts.jsonl is lost: what was noted before the newest checkpoint is not known")
    job, why = _job_of(folder, found, sealed=written > 1)
    damaged += [why] if why else []
    if written == 1:
        served = (folder / "status.json").is_file()
        job, found = migrate(job), [_today(fact, served=served) for fact in found]
    return RunRecord(folder, job, found, written, tuple(damaged))


def _job_of(folder: Path, found: list[dict[str, object]], *, sealed: bool) -> tuple[dict[str, object], str]:
    """Return the job of a folder, and what is wrong with its job.toml; the facts have it, too."""
    from atoll.job.file import dumps

    path = folder / "job.toml"
    try:
        job = tomllib.loads(path.read_text(encoding="utf-8"))
        broken = "is another job than the run began with"
    except FileNotFoundError:
        job, broken = None, "is lost"
    except (OSError, ValueError):
        job, broken = None, "is damaged"
    said = (f.get("job") for f in found if f["what"] == "start")
    begun = next((table for table in said if isinstance(table, dict)), None)
    if job is None and begun is None:
        if any(path for name in CHECKPOINTS.values() for path in (folder / name).glob("*.safetensors")):
            raise Damaged(f"{path} {broken}, and the facts do not have the job: put the file back from a copy")
        what = "its job.toml is damaged, and nothing was done yet" if path.is_file() else "it has no job.toml"
        raise NoRun(f"{folder} is no run folder ({what}): runs are named at the end of atoll run")
    if begun is not None and (job is None or (sealed and dumps(job) != dumps(begun))):
        return tomllib.loads(dumps(begun)), f"{path} {broken}: the job is taken from the facts"
    return job or {}, ""


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
    if not file.is_file():  # those of release 0.1 have none; of a later one it is lost
        return FORMAT if (folder / CHECKPOINTS[FORMAT]).is_dir() else 1
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise OtherFormat(
            f"{file} says {text[:20]!r} and not a format number: it is damaged; if this release made the run, delete it"
        )
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


def facts(path: Path, *, sealed: bool = True) -> tuple[list[dict[str, object]], list[str]]:
    """Read facts, and say which lines are damaged; those are left out.

    A torn last line is ignored, and what a resumed run did again is taken from the later time.
    """
    kept: list[dict[str, object]] = []
    bad: list[int] = []
    parse = unseal if sealed else _loose
    *lines, torn = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    for k, line in enumerate([*lines, torn] if parse(torn) else lines, 1):
        fact = parse(line)
        if fact is None:
            bad.append(k)
            continue
        again = fact.pop("again", False)
        if fact["what"] == "start" and again:  # its line was lost
            kept.insert(0, fact)
            continue
        if fact["what"] == "start":  # nothing was kept before it: all was done again, by who had come
            kept = [f for f in kept if f["what"] == "joined"]
        if fact["what"] == "resume":
            kept = until(kept, int(number(fact, "round") or 0), unseen=bool(fact.get("unseen")))
        kept.append(fact)
    shown = ", ".join(map(str, bad[:5])) + (" and others" if len(bad) > 5 else "")
    words = f"lines {shown} are" if len(bad) > 1 else f"line {shown} is"
    return kept, [f"{path}: {words} damaged and left out"] if bad and sealed else []


def until(facts: list[dict[str, object]], t: int, *, unseen: bool = False) -> list[dict[str, object]]:
    """Return the facts that a run has which resumes after round t; `unseen`: the model of that is evaluated again."""
    last = {"evaluation": t - 1, "unevaluated": t - 1} if unseen else {}
    return [f for f in facts if f["what"] != "end" and (number(f, "round") or 0) <= last.get(str(f["what"]), t)]


def _loose(line: bytes) -> dict[str, object] | None:
    """Read a fact of release 0.1, which had no checksums."""
    try:
        fact = json.loads(line)
    except ValueError:
        return None
    return fact if isinstance(fact, dict) and "what" in fact else None
