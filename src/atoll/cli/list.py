"""`atoll list`: every part that a job file can name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping


def list_all(kind: str | None) -> None:
    """Print the parts of a kind, or of all kinds."""
    from atoll.core.errors import nearest
    from atoll.data import SCHEMES
    from atoll.data.catalogue import FEDERATIONS, TABLES
    from atoll.job.catalogue import BadJob, entries
    from atoll.job.file import examples
    from atoll.job.parts import KINDS

    makers: dict[str, Mapping[str, Callable[..., object]]] = {"data": {**TABLES, **FEDERATIONS}, "split": SCHEMES}
    known = [*KINDS, *makers, "example"]
    if kind is not None and kind not in known:
        raise BadJob(f"there is no kind '{kind}'; {nearest(kind, known)}")
    write = sys.stdout.write
    for k in known if kind is None else [kind]:
        said = list(_made(makers[k]) if k in makers else entries(k) if k in KINDS else _plain(examples()))
        if not said and kind is None:
            continue  # a kind that only other packages have parts of
        write(f"{k}\n")
        for name, purpose, shown in said:
            write(f"  {name:<14} {purpose}\n")
            if shown:
                write(f"  {'':<14}   {', '.join(shown)}\n")
        write("\n")


def _plain(purposes: Mapping[str, str]) -> Iterator[tuple[str, str, list[str]]]:
    return ((name, purpose, []) for name, purpose in purposes.items())


def _made(makers: Mapping[str, Callable[..., object]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (name, one-line purpose, options with their defaults) of functions."""
    for name, maker in makers.items():
        options = [p for p in inspect.signature(maker).parameters.values() if p.kind is not p.POSITIONAL_ONLY]
        shown = [p.name if p.default is p.empty else f"{p.name} = {p.default}" for p in options]
        yield name, (inspect.getdoc(maker) or "").split("\n")[0], shown
