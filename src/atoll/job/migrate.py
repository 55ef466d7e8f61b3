"""Rewrite what is in words of release 0.1. Files are rewritten; nothing is read in two languages.

One function decides what must change, by paths. `migrate` applies its decisions to a table in memory, `rewrite` to the
text of a file. So both give the same job.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, cast

from atoll.core.renames import FIELDS, PARTS
from atoll.job.catalogue import BadJob
from atoll.job.renames import DATA, DEFAULTS, KEYS, METRICS, POLICY, POLICY_KEYS
from atoll.job.spans import Path, Span, scan

FileKind = Literal["job", "policy"]


class Edit(NamedTuple):
    """One change: the key or the value at this path becomes `new`, or the pair is dropped."""

    path: Path
    what: Literal["key", "value", "drop"]
    new: str = ""


class ChangedLine(NamedTuple):
    """What was changed, and in which line of the file as it was."""

    line: int
    words: str


def kind_of(said: Mapping[str, object]) -> FileKind | None:
    """Say whether a table is a job's or a policy's, in words of any release; None if it is neither."""
    if "method" in said or "program" in said:
        return "job"
    return "policy" if POLICY_KEYS & said.keys() or said.keys() == {"data"} else None


def migrate(said: Mapping[str, object]) -> dict[str, object]:
    """Return a job or policy of release 0.1 in the words of this one; what is with the current names stays as it is.

    Args:
        said: the table of a job file or a policy file.

    Raises:
        BadJob: a key stands there under its old and under its new name.
    """
    made = _applied(said, (), {edit.path: edit for edit in edits(said)})
    assert isinstance(made, dict)
    return made


def rewrite(text: str) -> tuple[str, list[ChangedLine]]:
    """Return the text of a job or policy file with the current names, and what was changed, by line.

    Comments, order and layout stay as they are. A line that holds only a dropped field goes with its comment.

    Args:
        text: TOML.

    Raises:
        BadJob: a key stands there under its old and under its new name.
        tomllib.TOMLDecodeError: the text is not TOML.
    """
    wanted = {edit.path: edit for edit in edits(tomllib.loads(text))}
    changes, pieces = list[ChangedLine](), list[tuple[int, int, str]]()
    spans = scan(text)
    for what, found in (("key", spans.keys), ("value", spans.values), ("drop", spans.pairs)):
        for span in found:
            edit = wanted.get(span.path)
            if edit is None or edit.what != what:
                continue
            pieces.append(_piece(text, span, edit))
            old = text[span.start : span.end]
            words = f"{old} is dropped" if edit.what == "drop" else f"{old} is now {pieces[-1][2]}"
            changes.append(ChangedLine(text.count("\n", 0, span.start) + 1, words))
    for start, end, new in sorted(pieces, reverse=True):
        text = text[:start] + new + text[end:]
    return text, sorted(changes)


def other_defaults(said: Mapping[str, object]) -> list[str]:
    """Say of a job which fields it leaves to a default that is not release 0.1's."""
    found = []
    for key in ("method", "combine"):
        part = said.get(key)
        use = part.get("use") if isinstance(part, Mapping) else part
        if isinstance(use, str) and use in DEFAULTS:
            field, meaning = DEFAULTS[use]
            if isinstance(part, str) or field not in cast("Mapping[str, object]", part):
                found.append(f"{key}.{field} is left out: {meaning}")
    return found


def of_release_0_1(said: Mapping[str, object]) -> str:
    """Return what to add to a refusal of a file that has words of release 0.1; nothing for other files."""
    try:
        old = bool(edits(said))
    except BadJob:
        old = True
    return " (the file has words of release 0.1: atoll migrate FILE rewrites it)" if old else ""


def edits(said: Mapping[str, object]) -> list[Edit]:
    """Decide what must change in a job or a policy."""
    return list(_policy(said) if kind_of(said) == "policy" else _job(said))


def _job(said: Mapping[str, object]) -> Iterator[Edit]:
    yield from _renamed(said, KEYS, ())
    for key in ("method", "select", "combine"):
        yield from _part(key, said.get(key), (key,))
    for key, kind in (("stages", "stage"), ("stop", "stop")):
        parts = said.get(key)
        if isinstance(parts, list):
            for number, part in enumerate(parts):
                yield from _part(kind, part, (key, number))
        else:
            yield from _part(kind, parts, (key,))
    yield from _data(said)


def _policy(said: Mapping[str, object]) -> Iterator[Edit]:
    yield from _renamed(said, POLICY, ())
    yield from _data(said)


def _data(said: Mapping[str, object]) -> Iterator[Edit]:
    data = said.get("data")
    if isinstance(data, Mapping):
        yield from _renamed(data, DATA, ("data",))


def _part(kind: str, part: object, at: Path) -> Iterator[Edit]:
    names = PARTS.get(kind, {})
    if isinstance(part, str) and part in names:
        yield Edit(at, "value", names[part])
    if not isinstance(part, Mapping) or not isinstance(part.get("use"), str):
        return
    yield from _part(kind, part["use"], (*at, "use"))
    yield from _renamed(part, FIELDS.get(part["use"], {}), at)
    if kind == "select":  # one select may hold another
        yield from _part(kind, part.get("select"), (*at, "select"))
    metric = part.get("metric") if kind == "stop" else None
    for old, new in METRICS.items():
        if isinstance(metric, str) and metric.startswith(old):
            yield Edit((*at, "metric"), "value", new + metric.removeprefix(old))


def _renamed(table: Mapping[str, object], names: Mapping[str, str | None], at: Path) -> Iterator[Edit]:
    for key in table:
        new = names.get(key, key)
        if new is None:
            yield Edit((*at, key), "drop")
        elif new != key:
            if new in table:
                where = ".".join(map(str, at))
                raise BadJob(f"{where}{'.' if where else ''}{key} is called {new} now, and both are there: keep one")
            yield Edit((*at, key), "key", new)


def _applied(value: object, at: Path, wanted: Mapping[Path, Edit]) -> object:
    if isinstance(value, Mapping):
        here = {key: wanted.get((*at, key)) for key in value}
        return {
            edit.new if edit and edit.what == "key" else key: _applied(value[key], (*at, key), wanted)
            for key, edit in here.items()
            if edit is None or edit.what != "drop"
        }
    if isinstance(value, list):
        return [_applied(row, (*at, number), wanted) for number, row in enumerate(value)]
    edit = wanted.get(at)
    return edit.new if edit and edit.what == "value" else value


def _piece(text: str, span: Span, edit: Edit) -> tuple[int, int, str]:
    """Say which part of the text is replaced, and by what."""
    if edit.what == "key":
        return span.start, span.end, edit.new
    if edit.what == "value":
        quote = text[span.start]  # as the file quotes
        return span.start, span.end, f"{quote}{edit.new}{quote}"
    start, end = span.start, span.end
    before = text[:start].rstrip(" \t")
    if before.endswith(","):  # in a table on one line, after another field
        return len(before) - 1, end, ""
    if before.endswith("{"):  # the first of them
        after = text[end:].lstrip(" \t")
        return (start, len(text) - len(after[1:].lstrip(" \t")), "") if after.startswith(",") else (start, end, "")
    newline = text.find("\n", end)
    return len(before), len(text) if newline < 0 else newline + 1, ""
