"""Job files: TOML to a job with its data and seed, and back. Overrides reach any key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from atoll.catalogue import BadJob, build, nearest, table
from atoll.job import Channel, Job

KEYS = ("name", "rounds", "seed", "every", "data", "method", "select", "stages", "combine", "stop", "availability")


@dataclass(frozen=True)
class JobFile:
    """A job, the recipe of its data, its seed: what a file says."""

    job: Job
    data: Mapping[str, Any]
    seed: int = 0


def examples() -> dict[str, str]:
    """Return the jobs that come with Atoll: name to the first line of comment."""
    found = {}
    for entry in sorted(files("atoll.jobs").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            found[entry.name[:-5]] = entry.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return found


def source(job: str) -> tuple[str, str]:
    """Return (where it is from, text) of a file or of a job that comes with Atoll."""
    path = Path(job)
    if path.is_file():
        try:
            return str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadJob(f"{path}: cannot be read as UTF-8 text: {error}") from None
    if job in examples():
        return job, files("atoll.jobs").joinpath(f"{job}.toml").read_text(encoding="utf-8")
    known = [*examples(), *(str(p) for p in path.parent.glob("*.toml"))] if path.parent.is_dir() else examples()
    raise BadJob(f"there is no job file '{job}' and no example of that name; {nearest(job, known)}")


def load(job: str, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file, or a job that comes with Atoll, with overrides applied."""
    where, text = source(job)
    return parse(text, where, overrides)


def parse(text: str, where: str, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file's text, with `key=value` overrides applied."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"{where}: not TOML: {error}") from None
    for override in overrides:
        _override(said, override)
    try:
        return from_table(said)
    except BadJob as error:
        raise BadJob(f"{where}: {error}") from None


def from_table(said: Mapping[str, Any]) -> JobFile:
    """Make a job from what a file says."""
    _check_keys(said)
    parts: dict[str, Any] = {"method": build("method", said["method"])}
    for key in ("select", "availability"):
        if key in said:
            parts[key] = build(key, said[key])
    stages = _list("stages", said.get("stages", [{"use": "weigh"}]))
    made = [build("stage", stage, f"stages.{i}") for i, stage in enumerate(stages)]
    parts["channel"] = Channel(made, build("combine", said.get("combine", "sum")))
    parts["stop"] = [build("stop", s, f"stop.{i}") for i, s in enumerate(_list("stop", said.get("stop", [])))]
    plain = {key: said[key] for key in ("rounds", "every", "name") if key in said}
    try:
        job = Job(**parts, **plain)
    except ValueError as error:
        raise BadJob(str(error)) from None
    data = {"use": said["data"]} if isinstance(said["data"], str) else dict(said["data"])
    return JobFile(job, data, said.get("seed", 0))


def _check_keys(said: Mapping[str, Any]) -> None:
    for key in said:
        if key not in KEYS:
            raise BadJob(f"{key}: no such key; {nearest(key, KEYS)}")
    for key in ("data", "method"):
        if key not in said:
            raise BadJob(f"'{key}' is missing: `atoll new NAME` writes a job file to start from")
    for key, kind in (("rounds", int), ("every", int), ("name", str), ("seed", int)):
        if key in said and (not isinstance(said[key], kind) or isinstance(said[key], bool)):
            raise BadJob(f"{key} = {said[key]!r}: a {'whole number' if kind is int else 'text'} is needed")
    if not isinstance(said["data"], str | Mapping):
        raise BadJob('data: say which, as in data = { use = "digits", clients = 10 }')


def _list(key: str, value: Any) -> list[Any]:
    """Take one table for a list of one."""
    if isinstance(value, Mapping | str):
        return [value]
    if not isinstance(value, list):
        raise BadJob(f"{key} = {value!r}: a list of tables is needed, as in {key} = [{{ use = … }}]")
    return value


def to_table(job: Job, data: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Say in a file's words what a job is."""
    said: dict[str, Any] = {"name": job.name, "rounds": job.rounds, "seed": seed, "every": job.every}
    said |= {"data": dict(data), "method": table(job.method), "select": table(job.select)}
    said |= {"stages": table(list(job.channel.stages)), "combine": table(job.channel.combine)}
    said |= {"stop": table(list(job.stop)), "availability": table(job.availability)}
    return said


def dumps(said: Mapping[str, Any]) -> str:
    """Write a table as TOML, a line a key."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in said.items())


def _toml(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's text is TOML's
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, int | float):
        return repr(value)
    raise BadJob(f"{value!r} cannot be written to a job file")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _override(said: dict[str, Any], text: str) -> None:
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise BadJob(f"--set {text}: write key=value, as in --set method.lr=0.05")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *path, last = key.strip().split(".")
    at: Any = said
    if path and path[0] == "stages":
        said.setdefault("stages", [{"use": "weigh"}])
    for step in path:
        where: Any = _item(at, step, key) if isinstance(at, list) else step
        if isinstance(at, dict):
            at.setdefault(step, {})
        if isinstance(at[where], str):
            at[where] = {"use": at[where]}  # a bare name grows into a table
        at = at[where]
        if not isinstance(at, dict | list):
            raise BadJob(f"--set {key}: {step} is {at!r}, which has nothing inside to set")
    at[_item(at, last, key) if isinstance(at, list) else last] = parsed


def _item(rows: list[Any], step: str, key: str) -> int:
    if not step.isdigit() or int(step) >= len(rows):
        raise BadJob(f"--set {key}: the list has {len(rows)} entries, counted from 0")
    return int(step)
