"""Read a run folder back: the job, the facts, the newest whole checkpoint. Nothing here runs anything."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.core.tree import Tree, nest


class NoRun(FileNotFoundError):
    """The folder is no run."""


@dataclass(frozen=True)
class Record:
    """A run as its folder tells it."""

    folder: Path
    job: dict[str, Any]
    facts: list[dict[str, Any]]

    def memory(self) -> Tree | None:
        """Return the newest checkpoint that is whole, or None."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        for path in sorted((self.folder / "keep").glob("*.safetensors"), reverse=True):
            try:
                return nest(load_file(path))
            except (SafetensorError, OSError, ValueError):
                continue  # torn by a crash: the one before it is whole
        return None


def read(folder: str | Path) -> Record:
    """Read a run folder."""
    folder = Path(folder)
    if not (folder / "job.toml").is_file():
        raise NoRun(f"{folder} is no run folder (it has no job.toml): runs are named at the end of atoll run")
    job = tomllib.loads((folder / "job.toml").read_text(encoding="utf-8"))
    return Record(folder, job, facts(folder / "facts.jsonl"))


def facts(path: Path) -> list[dict[str, Any]]:
    """Read facts; a torn last line is ignored, and what a resumed run did again is taken from the later time."""
    kept: list[dict[str, Any]] = []
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
