"""Job files: TOML to a job with its data and seed, and back. Overrides reach any key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import nearest
from atoll.core.given import number
from atoll.job import renames
from atoll.job.catalogue import BadJob, Gate, OldName, build, plain, renamed, table
from atoll.job.job import Channel, Job, check_job
from atoll.job.migrate import of_release_0_1
from atoll.job.roles import RoleJob
from atoll.job.roles import from_table as roles_from_table
from atoll.job.roles import to_table as roles_to_table

if TYPE_CHECKING:
    from atoll.job.parts import Package

KEYS = (
    "name",
    "rounds",
    "seed",
    "eval_every",
    "data",
    "method",
    "select",
    "stages",
    "combine",
    "stop",
    "availability",
    "metrics",
    "phases",
    "train_loss",
    "min_parties",
    "required",
    "extra_answers",
)
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class JobFile:
    """A job, the recipe of its data, its seed: what a file says."""

    job: Job
    data: Mapping[str, object]
    seed: int = 0


def examples() -> dict[str, str]:
    """Return the jobs that come with Atoll: name to the first line of comment."""
    found = {}
    for entry in sorted(files("atoll.job.examples").iterdir(), key=lambda e: e.name):
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
        return job, files("atoll.job.examples").joinpath(f"{job}.toml").read_text(encoding="utf-8")
    known = [*examples(), *(str(p) for p in path.parent.glob("*.toml"))] if path.parent.is_dir() else examples()
    raise BadJob(f"there is no job file '{job}' and no example of that name; {nearest(job, known)}")


def load(job: str, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job file, or a job that comes with Atoll, with overrides applied."""
    where, text = source(job)
    return parse(text, where, overrides)


def load_any(job: str, overrides: Sequence[str] = ()) -> JobFile | RoleJob:
    """Read a job file of either kind: one that trains a method, or a program with roles."""
    where, text = source(job)
    return parse_any(text, where, overrides)


def parse(
    text: str, where: str, overrides: Sequence[str] = (), *, local: bool = True, parts: Mapping[str, str] = NONE
) -> JobFile:
    """Read the text of a job that trains a method; arguments are those of `parse_any`."""
    found = parse_any(text, where, overrides, local=local, parts=parts)
    if isinstance(found, RoleJob):
        raise BadJob(f"{where}: this is a program with roles, and a job with a method is needed here")
    return found


def parse_any(
    text: str, where: str, overrides: Sequence[str] = (), *, local: bool = True, parts: Mapping[str, str] = NONE
) -> JobFile | RoleJob:
    """Read the text of a job file of either kind.

    Args:
        text: The job, as TOML.
        where: What the text is called in sentences.
        overrides: `key=value` each, applied before the job is made.
        local: Whether the text is of this machine, and may import any part. The text of a peer imports nothing but
            parts of Atoll and of the packages in `parts`.
        parts: Packages that the text of a peer may use, and the digest of each (`atoll parts`). Default: none.
    """
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"{where}: not TOML: {error}") from None
    for override in overrides:
        _override(said, override)
    if not local:
        _check_text(said, where)
    try:
        return any_from_table(said, None if local else _admitting(parts))
    except OldName as error:
        raise OldName(f"{where}: {error}") from None
    except BadJob as error:
        raise BadJob(f"{where}: {error}{of_release_0_1(said)}") from None


def _check_text(said: object, where: str) -> None:
    """Refuse a text of a peer with signs that would garble a screen; TOML can write any of them in ASCII."""
    if isinstance(said, str) and not said.isprintable():
        raise BadJob(f"{where}: {said[:40]!r} has control characters: take them out")
    inner = [*said, *said.values()] if isinstance(said, Mapping) else said if isinstance(said, list) else ()
    for one in inner:
        _check_text(one, where)


def _admitting(parts: Mapping[str, str]) -> Gate:
    from atoll.job.parts import admit

    return partial(admit, allowed=parts)


def third_party(job: Job | RoleJob) -> dict[str, Package]:
    """Return the packages that a job's parts come from, by name, as a party must have and allow them.

    Raises:
        BadJob: A part cannot travel as text (its class has no entry point), or a package has no digest (editable).
    """
    from atoll.job.parts import Entry, package_of

    found: set[str] = set()

    def take(entry: Entry, where: str) -> None:
        found.add(entry.package)

    said = roles_to_table(job, data=False) if isinstance(job, RoleJob) else to_table(job, {}, 0)
    any_from_table(tomllib.loads(dumps(said)), take)
    return {name: package_of(name) for name in sorted(found)}


def any_from_table(said: Mapping[str, object], gate: Gate | None = None) -> JobFile | RoleJob:
    """Make a job of either kind from what a file says: the keys `program` and `roles` decide."""
    return roles_from_table(said, gate) if "program" in said or "roles" in said else from_table(said, gate)


def from_table(said: Mapping[str, object], gate: Gate | None = None) -> JobFile:
    """Make a job from what a file says. `gate` decides on parts of other packages, for a text that came from a peer."""
    _check_keys(said)
    rounds, every = plain(said, "rounds", Job.rounds), plain(said, "eval_every", Job.eval_every)
    name, seed, data = plain(said, "name", Job.name), plain(said, "seed", 0), said["data"]
    if not isinstance(data, str | Mapping):
        raise BadJob('data: say which, as in data = { use = "digits", clients = 10 }')
    for key in data if isinstance(data, Mapping) else ():
        if key in renames.DATA:
            raise renamed("data: ", key, renames.DATA[key])
    method = build("method", said["method"], gate=gate)
    select = build("select", said["select"], gate=gate) if "select" in said else Job.select
    online = build("availability", said["availability"], gate=gate) if "availability" in said else Job.availability
    channel = _channel(said, "", gate)
    stop = [build("stop", one, f"stop.{i}", gate) for i, one in enumerate(_list("stop", said.get("stop", [])))]
    listed = enumerate(_list("metrics", said.get("metrics", [])))
    metrics = [build("metric", one, f"metrics.{i}", gate) for i, one in listed]
    try:
        told, extra = (plain(said, key, getattr(Job, key)) for key in ("train_loss", "extra_answers"))
        fewest = plain(said, "min_parties", 1) if "min_parties" in said else None
        job = Job(
            method, select, channel, rounds, stop, every, online, name, metrics, told, fewest, _names(said), extra
        )
    except ValueError as error:
        raise BadJob(str(error)) from None
    return JobFile(job, {"use": data} if isinstance(data, str) else dict(data), seed)


def _names(said: Mapping[str, object]) -> list[str]:
    names = said.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadJob(f'required = {names!r}: a list of names of parties is needed, as in required = ["north"]')
    return names


def _channel(said: Mapping[str, object], where: str, gate: Gate | None) -> Channel:
    stages = _list(f"{where}stages", said.get("stages", [{"use": "weigh"}]))
    made = [build("stage", stage, f"{where}stages.{i}", gate) for i, stage in enumerate(stages)]
    phases = said.get("phases", {})
    if not isinstance(phases, Mapping) or not all(isinstance(one, Mapping) for one in phases.values()):
        raise BadJob(f"{where}phases = {phases!r}: a table for each phase, as in phases.gradient = {{ stages = […] }}")
    inner = {name: _channel(one, f"{where}phases.{name}.", gate) for name, one in phases.items()}
    return Channel(made, build("combine", said.get("combine", "sum"), f"{where}combine", gate), inner)


def _check_keys(said: Mapping[str, object]) -> None:
    for key in said:
        if key not in KEYS:
            now = renames.KEYS.get(key)
            raise renamed("", key, now) if now else BadJob(f"{key}: no such key; {nearest(key, KEYS)}")
    for key in ("data", "method"):
        if key not in said:
            raise BadJob(f"'{key}' is missing: `atoll new NAME` writes a job file to start from")


def _list(key: str, value: object) -> list[object]:
    """Take one table for a list of one."""
    if isinstance(value, Mapping | str):
        return [value]
    if not isinstance(value, list):
        raise BadJob(f"{key} = {value!r}: a list of tables is needed, as in {key} = [{{ use = … }}]")
    return value


def to_table(job: Job, data: Mapping[str, object], seed: int) -> dict[str, object]:
    """Say in a file's words what a job is."""
    check_job(job)
    number("seed", seed, least=None)
    said: dict[str, object] = {"name": job.name, "rounds": job.rounds, "seed": seed, "eval_every": job.eval_every}
    said |= {"data": dict(data), "method": table(job.method), "select": table(job.select)}
    said |= _channel_table(job.channel)
    said |= {"stop": table(list(job.stop)), "availability": table(job.availability)}
    said |= {"metrics": table(list(job.metrics))} if job.metrics else {}
    said |= {} if job.train_loss else {"train_loss": False}
    said |= {} if job.min_parties is None else {"min_parties": job.min_parties}
    said |= {"extra_answers": job.extra_answers} if job.extra_answers else {}
    return {**said, "required": list(job.required)} if job.required else said


def substance_of(job: Job | RoleJob) -> bytes:
    """Hash what a job asks of a party: its method and channel, or its program.

    Another name, seed, select or number of rounds, other stops and other words around them make it no other.
    """
    if isinstance(job, RoleJob):
        return sha256(dumps({"program": table(job.program)}).encode()).digest()
    return sha256(dumps({"method": table(job.method), **_channel_table(job.channel)}).encode()).digest()


def _channel_table(channel: Channel) -> dict[str, object]:
    said: dict[str, object] = {"stages": table(list(channel.stages)), "combine": table(channel.combine)}
    phases = {name: _channel_table(one) for name, one in channel.phases.items()}
    return {**said, "phases": phases} if phases else said


def dumps(said: Mapping[str, object]) -> str:
    """Write a table as TOML, a line a key."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in said.items())


def _toml(value: object) -> str:
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


def _override(said: dict[str, object], text: str) -> None:
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
        where = _item(at, step, key) if isinstance(at, list) else step
        if isinstance(at, dict):
            at.setdefault(step, {})
        if isinstance(at[where], str):
            at[where] = {"use": at[where]}  # a bare name grows into a table
        at = at[where]
        if not isinstance(at, dict | list):
            raise BadJob(f"--set {key}: {step} is {at!r}, which has nothing inside to set")
    at[_item(at, last, key) if isinstance(at, list) else last] = parsed


def _item(rows: list[object], step: str, key: str) -> int:
    if not step.isdigit() or int(step) >= len(rows):
        raise BadJob(f"--set {key}: the list has {len(rows)} entries, counted from 0")
    return int(step)
