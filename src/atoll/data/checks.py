"""Whether a federation can be learnt from: one question asked before a run, answered by silence or one sentence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atoll.core.tree import Array
from atoll.data.errors import BadData
from atoll.data.federated import Federated, Silos

LARGE = 1 << 30  # bytes of a mapped array beyond which only some parties are read
SOME = 1_000
ROWS = 1 << 16


def check_federated(data: object) -> None:
    """Refuse what is no federation, such as a table that is not split."""
    if not isinstance(data, Federated):
        what = type(data).__name__
        made = "make one, atoll.data.load(…).split(…) or atoll.data.from_arrays(x, y).split(…)"
        remedy = "split it first, data.split(10, seed=0)" if what == "Table" else made
        raise BadData(f"data is a {what}, and a federation of parties is needed: {remedy}")


def check(federated: Federated) -> None:
    """Refuse a federation with an empty party, values that are not finite, or labels that are out of range.

    Args:
        federated: the federation. If it is larger than a gigabyte and memory-mapped, 1,000 of its parties are read.

    Raises:
        BadData: with the party, and what to change.

    Example:
        >>> import atoll
        >>> atoll.data.check(atoll.data.load("digits").split(10, seed=0))
    """
    check_federated(federated)
    if not len(federated.train.y):
        raise BadData("the data is a schema, without samples: serve the job (atoll serve), or name data to simulate it")
    empty = np.flatnonzero(np.asarray(federated.train.sizes) < 1)
    if len(empty):
        raise BadData(f"party {federated.name(int(empty[0]))} has no samples: leave it out or give it some")
    splits = {"train": federated.train, "local": federated.local, "test": federated.test}
    for split, silos in splits.items():
        if silos is not None:
            _check(federated, split, silos)
    y = federated.train.y
    if federated.kind == "classes" and y.min() == y.max():
        raise BadData(f"all parties together hold only class {y.min()}: give samples of at least two classes")


def _check(federated: Federated, split: str, silos: Silos) -> None:
    def where(row: int) -> str:
        party = _party(silos, row)
        if party is None:
            return ""
        return f"test part {party}" if split == "test" else f"party {federated.name(party)}"

    for rows in _blocks(silos):
        x, y = silos.x[rows], silos.y[rows]
        _finite(x, rows.start, where, "a feature")
        _finite(y, rows.start, where, "a label")
        if federated.kind == "classes":
            wrong = np.argwhere((y < 0) | (y >= federated.classes))
            for place in wrong:
                if who := where(rows.start + int(place[0])):
                    label, top = y[tuple(place)], federated.classes - 1
                    raise BadData(f"{who} has label {label}, beyond 0 to {top}: correct it or raise classes")


def _finite(values: Array, start: int, where: Callable[[int], str], what: str) -> None:
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    for place in np.argwhere(~np.isfinite(values)):
        if who := where(start + int(place[0])):
            raise BadData(f"{who} has {values[tuple(place)]} for {what}: fill it in or drop the sample")


def _blocks(silos: Silos) -> list[slice]:
    """Return the rows to read, in pieces: all of them, or those of some parties of a large mapped array."""
    if silos.index is None and isinstance(silos.x, np.memmap) and silos.x.nbytes > LARGE:
        chosen = np.unique(np.linspace(0, len(silos) - 1, min(SOME, len(silos))).astype(int))
        return [slice(int(silos.offsets[k]), int(silos.offsets[k + 1])) for k in chosen]
    return [slice(a, min(a + ROWS, len(silos.y))) for a in range(0, len(silos.y), ROWS)]


def _party(silos: Silos, row: int) -> int | None:
    """Return who holds a row, or None if nobody refers to it."""
    position = row
    if silos.index is not None:
        found = np.flatnonzero(silos.index == row)
        if not len(found):
            return None
        position = int(found[0])
    return int(np.searchsorted(silos.offsets, position, side="right")) - 1
