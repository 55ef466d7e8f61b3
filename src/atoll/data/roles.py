"""What one role of a program holds: rows by their ids, columns as 64-bit numbers, a label or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from math import isnan

import numpy as np
from numpy.typing import ArrayLike

from atoll.core.method import DataSummary
from atoll.core.question import Layout, Leaf
from atoll.core.tree import Array
from atoll.data.columns import Columns, read_columns
from atoll.data.errors import BadData, unknown
from atoll.data.federated import Federated, Silos

KEYS = ("path", "id", "features", "label")


@dataclass(frozen=True, eq=False)
class RoleData:
    """Rows of one role, sorted by id. It stands for the samples of the one party that plays the role.

    Args:
        x: (n, d) columns, float64.
        y: (n,) labels, float64; (n, 0) without a label.
        ids: (n,) int64 or text, each once; (0,) where rows have no ids.
        names: of the d columns.
    """

    x: Array
    y: Array
    ids: Array
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def offsets(self) -> Array:
        return np.array([0, len(self.x)])

    @property
    def index(self) -> None:
        return None

    def summary(self, salt: bytes) -> DataSummary:
        """Say what other roles and the hub are told: rows, columns, whether there is a label, a salted hash of ids."""
        leaves = {"x": Leaf("float64", self.x.shape[1:])}
        leaves |= {"y": Leaf("float64", ())} if self.y.ndim == 1 else {}
        return DataSummary(len(self.x), Layout(leaves), "real", 0, self.names, ids_digest(self.ids, salt))


@dataclass(frozen=True, eq=False)
class ManyData:
    """What the parties hold that play one role together.

    Args:
        samples: of all of them, end to end; y has no columns where the role holds no labels.
        kind: of the label, "classes" or "real".
        classes: how many there are.
        names: of the columns.
    """

    samples: Silos
    kind: str = "classes"
    classes: int = 0
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def summary(self, salt: bytes) -> DataSummary:
        """Say what is known of it before the first question: all rows together, and how many parties hold them."""
        held = self.samples
        arrays = {"x": held.x} if held.y.shape[1:] == (0,) else {"x": held.x, "y": held.y}
        leaves = {name: Leaf(a.dtype.name, tuple(map(int, a.shape[1:])), finite=False) for name, a in arrays.items()}
        rows = int(held.sizes.sum())
        return DataSummary(rows, Layout(leaves), self.kind, self.classes, self.names, parties=len(held))


def many(data: Federated, *, labels: bool = True) -> ManyData:
    """Give a federation's training data to a role that many play; without `labels` only the columns."""
    held = data.train
    if labels:
        return ManyData(held, data.kind, data.classes, data.features)
    bare = Silos(held.x, np.zeros((len(held.x), 0)), held.offsets, held.index)
    return ManyData(bare, "real", 0, data.features)


def ids_digest(ids: Array, salt: bytes) -> bytes:
    """Hash all ids together, in order; nothing where there are none. Who can guess the whole list can confirm it."""
    if not len(ids):
        return b""
    found = sha256(b"atoll/ids/1" + len(salt).to_bytes(4, "big") + salt)
    for each in ids.tolist():
        text = str(each).encode()
        found.update(len(text).to_bytes(4, "big") + text)
    return found.digest()


def columns(
    x: ArrayLike, y: ArrayLike | None = None, *, ids: ArrayLike | None = None, names: Sequence[str] = ()
) -> RoleData:
    """Make a role's data of arrays; rows are sorted by id.

    Args:
        x: (n, d) columns.
        y: (n,) labels; None without.
        ids: n whole numbers or texts, each once; None: rows have no ids and keep their order.
        names: of the columns; default: column 0, column 1, ….
    """
    try:
        x = np.array(x, np.float64, ndmin=1)
        labels = np.zeros((len(x), 0)) if y is None else np.array(y, np.float64, ndmin=1)
        # NumPy would turn whole numbers of several sizes into reals, and ids beyond 2^53 into one.
        written = None if ids is None else _written(ids.tolist() if isinstance(ids, np.ndarray) else ids)  # type: ignore[arg-type]
    except (TypeError, ValueError) as reason:
        raise BadData(f"a role's columns and labels are numbers, its ids a list ({reason}): give such") from None
    if x.ndim != 2 or len(labels) != len(x) or labels.ndim != (2 if y is None else 1):
        raise BadData(f"columns of shape {x.shape} with labels of shape {labels.shape}: give (n, d) and (n,)")
    if not (np.isfinite(x).all() and np.isfinite(labels).all()):
        raise BadData("a column or label has numbers that are not finite: fill them in or drop the rows")
    names = tuple(names) or tuple(f"column {k}" for k in range(x.shape[1]))
    if len(names) != x.shape[1] or len(set(names)) != len(names):
        raise BadData(f"{len(names)} names for {x.shape[1]} columns: give each column a name of its own")
    if written is None:
        return RoleData(x, labels, np.zeros(0, np.int64), names)
    keys = _keys(written, "the ids")
    if len(keys) != len(x):
        raise BadData(f"{len(keys)} ids for {len(x)} rows: give one for each row")
    order = np.argsort(keys, kind="stable")
    return RoleData(x[order], labels[order], keys[order], names)


def nothing() -> RoleData:
    """Return the data of a role that holds none."""
    return RoleData(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, np.int64))


def read_role(recipe: Mapping[str, object]) -> RoleData:
    """Read a role's own table.

    Args:
        recipe: `path` of a .csv, .csv.gz or .parquet file; `id`, the column that names rows; `label`, the column of
            labels (none without); `features`, a list of columns (default: all others). Empty: the role holds nothing.
    """
    if not recipe:
        return nothing()
    for key, kind in (("path", str), ("id", str), ("label", str), ("features", list)):
        if key in recipe and not isinstance(recipe[key], kind):
            raise BadData(f"{key} = {recipe[key]!r}: a {'list of columns' if kind is list else 'text'} is needed")
    for key in recipe:
        if key not in KEYS:
            raise unknown("key of a role's data", key, KEYS)
    for key, what in (("path", "its file"), ("id", "the column that names its rows")):
        if key not in recipe:
            raise BadData(f'a role\'s data has no {key}: add {key} = "…", {what}')
    texts = {key: value for key, value in recipe.items() if isinstance(value, str)}
    table, features = read_columns(texts["path"]), recipe.get("features")
    key, label = texts["id"], texts.get("label")
    table.pick(key, "id column")
    others = [name for name in table.values if name not in (key, label)]
    names = [str(name) for name in features] if isinstance(features, list) else others
    _check_features(names, key, label)
    rows = len(table.lines)
    x = np.stack([_numbers(table, name) for name in names], axis=1) if names else np.zeros((rows, 0))
    ids = _keys(_texts(table, key), f"column {key!r} of {table.source}")
    order = np.argsort(ids, kind="stable")
    y = np.zeros((rows, 0)) if label is None else _numbers(table, label)
    return RoleData(np.ascontiguousarray(x[order]), y[order], ids[order], tuple(names))


def _check_features(names: list[str], key: str, label: str | None) -> None:
    for name in names:
        if name in (key, label):
            raise BadData(f"column {name!r} is the {'id' if name == key else 'label'}: leave it out of features")
        if names.count(name) > 1:
            raise BadData(f"column {name!r} is twice in features: name each column once")


def _texts(table: Columns, name: str) -> list[str]:
    """Return ids as they are written. A Parquet file may hold numbers; a row without one has an empty id."""
    values = table.pick(name)
    if isinstance(values, np.ndarray):
        return _written(values.tolist())
    return [str(text) for text in table.text(name)]


def _written(ids: Iterable[object]) -> list[str]:
    """Write ids as text: 7, 7.0 and "7" are the same one, and one that is missing is empty."""
    return [_one_written(one) for one in ids]


def _one_written(one: object) -> str:
    if one is None or (isinstance(one, float) and isnan(one)):
        return ""
    return str(int(one)) if isinstance(one, float) and one.is_integer() else str(one).strip()


def _numbers(table: Columns, name: str) -> Array:
    found = table.numbers(name)
    if found is None:
        raise BadData(f"column {name!r} of {table.source} is text: leave it out of features, or write it as numbers")
    return found


def _keys(texts: list[str], where: str) -> Array:
    """Turn ids into whole numbers, where all are written as such, else into texts; refuse one that comes twice."""
    if len(set(texts)) != len(texts):
        twice = next(a for a, b in pairwise(sorted(texts)) if a == b)
        raise BadData(f"{where} has id {twice!r} twice: keep one row of each id")
    if any(not text for text in texts):
        raise BadData(f"{where} has an empty id: name every row")
    if all(_whole(text) for text in texts):
        return np.array([int(text) for text in texts], np.int64)
    return np.array(texts, str)


def _whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18 and str(int(text)) == text
