"""Tables and federations made from arrays or files of one's own, refused here if they cannot be learnt from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from atoll.core.tree import Array
from atoll.data.columns import Columns, read_columns
from atoll.data.encode import MOST_CLASSES, encode, labels, learn_features, learn_target
from atoll.data.errors import BadData
from atoll.data.federated import Federated, Kind, Silos
from atoll.data.schema import GONE, TableSchema
from atoll.data.table import Table, central


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    test: tuple[ArrayLike, ArrayLike] | float | None = None,
    keys: Mapping[str, ArrayLike] | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    features: Sequence[str] = (),
) -> Table:
    """Make a table of arrays: samples first, one label (or a row of labels) for each sample.

    Args:
        x: rows of features, finite numbers.
        y: one label for each row; classes are numbered from 0.
        test: the central test set: a pair (x, y), or the fraction of the rows to take out. Default: none.
        keys: values by which `split` can divide the rows, one for each row. Default: none.
        kind: "classes" (integer labels) or "real" (regression targets). Default: whole-numbered labels with at most 100
            distinct values are classes, and so are all integers.
        classes: number of classes. Default: the largest label plus one.
        features: names of the columns. Default: none.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> x, y = np.random.default_rng(0).normal(size=(200, 5)), np.arange(200) % 3
        >>> table = atoll.data.from_arrays(x, y, test=0.2, keys={"city": np.arange(200) % 4})
        >>> len(table), len(table.split(by="city"))
        (160, 4)
    """
    x, y = _samples(x), np.asarray(y)
    _same_length(x, y, "x and y")
    kind = kind or _kind_of(y)
    pair = None
    if test is not None and not isinstance(test, int | float):
        test_x, given = _pair(test, "test")
        pair = _samples(test_x), np.asarray(given)
    y, count = _labels(y, kind, classes, "y")
    if kind == "classes" and classes is None and (y == y.flat[0]).all():
        raise BadData(f"all labels are {y.flat[0]}: give samples of at least two classes, or say kind = 'real'")
    _finite(x, features, "x")
    held = {name: np.asarray(key) for name, key in (keys or {}).items()}
    for name, key in held.items():
        _same_length(x, key, f"x and key {name!r}")
    table = Table(x, y, kind=kind, classes=count, features=tuple(features), keys=held)
    if pair is None:
        return table if test is None else table.holdout(float(test))  # type: ignore[arg-type]  # a number by now
    _same_length(*pair, "test x and test y")
    _finite(pair[0], features, "test x")
    if pair[0].shape[1:] != x.shape[1:]:
        raise BadData(f"test samples have shape {pair[0].shape[1:]}, training samples {x.shape[1:]}: make them equal")
    test_y, _ = _labels(pair[1], kind, count, "test y")
    return replace(table, test_x=pair[0], test_y=test_y)


def from_csv(
    path: str | Path,
    target: str,
    client: str | None = None,
    *,
    test: str | Path | float | None = None,
    features: Sequence[str] | None = None,
    kind: Kind | None = None,
    standardise: bool = False,
    units: Mapping[str, str] | None = None,
    fill: Mapping[str, float | str] | None = None,
    missing: Sequence[str] = GONE,
    schema: TableSchema | None = None,
) -> Table:
    """Read a CSV or (by suffix) Parquet file: a target column, feature columns, optionally a column of parties.

    Text features are one-hot encoded.

    Args:
        path: of the file.
        target: name of the column to predict.
        client: name of the column that names the party. Default: none; give `split` a number of clients.
        test: the central test set: a second file, or the fraction of the rows to take out. Default: none.
        features: names of the feature columns. Default: all other columns.
        kind: "classes" or "real", as in `from_arrays`. A text target is classes.
        standardise: whether number columns are shifted and scaled by the statistics of the training rows. Default
            false.
        units: of columns, by name: any text. Default: none are stated.
        fill: what stands for a missing cell, by column: a number, or a text. Default: no cell may be missing.
        missing: cells that stand for a missing value. Default: empty ones.
        schema: what the columns must mean, as a job states it; the file is read so. Default: what the file holds.

    Example:
        >>> import atoll, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "shop.csv")
        >>> rows = [f"{20 + i},{'ab'[i % 2]},{i % 3 % 2}" for i in range(40)]
        >>> _ = file.write_text(chr(10).join(["age,city,bought", *rows]))
        >>> atoll.data.from_csv(file, target="bought", client="city").split().parties
        ('a', 'b')
    """
    columns = read_columns(path)
    keys = {} if client is None else {client: _client(columns, client)}
    about = _reading(
        target=target, client=client, features=features, kind=kind, units=units, fill=fill, missing=missing
    )
    found = schema or _learnt(columns, about, whole=True)
    if schema is not None:
        schema.refuse(_learnt(columns, about, whole=False), str(path))
        found = msgspec.structs.replace(schema, missing=(*schema.missing, *missing))
    y, told = labels(found, columns), _kind_in(found)
    pair = _second(test, found) if isinstance(test, str | Path) else test
    classes = None if found.target.values is None else len(found.target.values)
    stated = classes if schema is not None else None
    table = from_arrays(
        encode(found, columns), y, test=pair, keys=keys, kind=told, classes=stated, features=found.names
    )
    if standardise if schema is None else schema.standardise:
        table = scaled(table, found.numeric)
    said: dict[str, object] = {"path": str(path), "target": target, "client": client, "kind": kind}
    said["holdout"] = str(test) if isinstance(test, Path) else test or 0.0  # said, since a job file's default is 0.2
    said |= {"features": list(features) if features else None, "standardise": standardise or None}
    said |= {"units": units or None, "fill": fill or None, "missing": list(missing) if missing != GONE else None}
    stands = msgspec.structs.replace(found, standardise=standardise) if schema is None else schema
    recipe = {k: v for k, v in said.items() if v is not None}
    return replace(table, name="csv", classes=classes or 0, recipe=recipe, schema=stands)


def describe_csv(path: str | Path, **options: object) -> TableSchema:
    """Say what a file holds, before anybody says what it should; options are those of `from_csv`."""
    return _learnt(read_columns(path), _reading(**options), whole=False)


def federate(
    parts: Sequence[tuple[ArrayLike, ArrayLike]],
    *,
    names: Sequence[str] = (),
    test: tuple[ArrayLike, ArrayLike] | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    features: Sequence[str] = (),
) -> Federated:
    """Make a federation of the arrays that each party holds.

    Args:
        parts: a pair (x, y) for each party, with at least one sample.
        names: of the parties. Default: they are numbered.
        test: the central test set, a pair (x, y). Default: none.
        kind: "classes" or "real", as in `from_arrays`.
        classes: number of classes. Default: the largest label plus one.
        features: names of the columns. Default: none.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> x, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
        >>> data = atoll.data.federate([(x[:20], y[:20]), (x[20:], y[20:])], names=("north", "south"))
        >>> len(data), data.name(1)
        (2, 'south')
    """
    if not isinstance(parts, Sequence):
        raise BadData(f"parts is a {type(parts).__name__}: give a list with a pair of arrays (x, y) for each party")
    if not parts:
        raise BadData("there are no parties: give at least one (x, y)")
    if names and len(names) != len(parts):
        raise BadData(f"{len(names)} names for {len(parts)} parties: give one each")
    pairs = [_pair(pair, f"party {names[k] if names else k}") for k, pair in enumerate(parts)]
    xs, ys = [_samples(x) for x, _ in pairs], [np.asarray(y) for _, y in pairs]
    # One party's real targets may happen to be whole; together they tell.
    kind = kind or ("classes" if all(_kind_of(y) == "classes" for y in ys) else "real")
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
        who = f"party {names[k] if names else k}"
        if not len(y):
            raise BadData(f"{who} has no samples: leave it out or give it some")
        _same_length(x, y, f"x and y of {who}")
        if x.shape[1:] != xs[0].shape[1:]:
            raise BadData(f"samples of {who} have shape {x.shape[1:]}, others {xs[0].shape[1:]}: make them equal")
        _finite(x, features, f"x of {who}")
        _labels(y, kind, classes, f"y of {who}")
    table = from_arrays(
        np.concatenate(xs), np.concatenate(ys), test=test, kind=kind, classes=classes, features=features
    )
    train = Silos(table.x, table.y, np.concatenate([[0], np.cumsum([len(y) for y in ys])]))
    tests = None if table.test_x is None or table.test_y is None else central(table.test_x, table.test_y)
    recipe = {"use": "arrays"}
    return Federated(train, tests, None, table.kind, table.classes, tuple(features), tuple(names), recipe)


def scaled(table: Table, numeric: Array) -> Table:
    """Standardise only the features that are numbers; 0/1 features stay as they are."""
    full = table.standardised()
    test_x = None
    if full.test_x is not None and table.test_x is not None:
        test_x = np.where(numeric, full.test_x, table.test_x)
    columns = tuple(np.flatnonzero(numeric).tolist())
    return replace(table, x=np.where(numeric, full.x, table.x), test_x=test_x, scaled=columns)


class _Reading(msgspec.Struct, frozen=True):
    """How a person says that a file is to be read."""

    target: str
    client: str | None = None
    features: tuple[str, ...] | None = None
    kind: Kind | None = None
    units: dict[str, str] = {}
    fill: dict[str, float | str] = {}
    missing: tuple[str, ...] = GONE


def _reading(**said: object) -> _Reading:
    try:
        return msgspec.convert({name: value for name, value in said.items() if value is not None}, _Reading)
    except msgspec.ValidationError as error:
        raise BadData(f"the options of a CSV file cannot be: {error}") from None


def _kind_in(schema: TableSchema) -> Kind:
    return "real" if schema.target.values is None else "classes"


def _learnt(columns: Columns, about: _Reading, *, whole: bool) -> TableSchema:
    """Find out what the columns of a file are; without `whole` also where it could not be trained on as it is."""
    columns.pick(about.target, "column (target)")
    for name in (*(about.features or ()), *about.units, *about.fill):
        columns.pick(name, "column (feature)")
    others = tuple(name for name in columns.values if name not in (about.target, about.client))
    chosen = others if about.features is None else about.features
    if not chosen:
        raise BadData(f"{columns.source} has no column but target and client: add a feature column")
    learnt = learn_features(columns, chosen, units=about.units, fill=about.fill, missing=about.missing, whole=whole)
    target = learn_target(columns, about.target, about.units.get(about.target, ""), about.kind)
    if whole and about.kind != "real" and (numbers := columns.numbers(about.target)) is not None and target.values:
        _labels(numbers, "classes", None, f"column {about.target!r} of {columns.source}", columns.lines)
    gaps = () if whole else tuple(name for name in chosen if columns.missing(name, about.missing).any())
    return TableSchema(learnt, target, about.missing, gaps=gaps)


def _second(path: str | Path, schema: TableSchema) -> tuple[Array, Array]:
    """Read a test file as its training file was read."""
    columns = read_columns(path)
    y = labels(schema, columns)
    return encode(schema, columns, strict=False), y


def _client(columns: Columns, client: str) -> Array:
    columns.pick(client, "column (client)")
    numbers = None if isinstance(columns.values[client], tuple | list) else columns.numbers(client)
    if numbers is not None:
        return numbers.astype(np.int64) if (numbers == np.rint(numbers)).all() else numbers
    found = columns.text(client)
    if (found == "").any():
        row = int(np.flatnonzero(found == "")[0])
        raise BadData(f"{columns.at(row, client)} names no client: fill it in or drop the row")
    return found


def _pair(value: object, where: str) -> tuple[ArrayLike, ArrayLike]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise BadData(f"{where} is a {type(value).__name__}: give a pair of arrays (x, y)")
    return value[0], value[1]


def _samples(x: ArrayLike) -> Array:
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise BadData(f"x holds {x.dtype}, not numbers: encode it as numbers first")
    if x.dtype.kind in "bf":
        with np.errstate(over="ignore"):  # too large for 32 bits becomes infinite, which is refused with its place
            return x.astype(np.float32, copy=False)
    if x.dtype.itemsize < 8 or not x.size:
        return x
    if not -(2**31) <= x.min() <= x.max() < 2**31:
        raise BadData("x holds integers beyond 32 bits: renumber them, or give floats")
    return x.astype(np.int32)


def _same_length(a: Array, b: Array, what: str) -> None:
    if a.ndim < 1 or b.ndim < 1 or len(a) != len(b):
        raise BadData(f"{what} have shapes {a.shape} and {b.shape}: give one label for each sample")
    if not len(a):
        raise BadData(f"{what} are empty: give at least one sample")


def _kind_of(y: Array) -> Kind:
    if y.dtype.kind != "f":
        return "classes"
    whole = bool(np.isfinite(y).all() and (y == np.rint(y)).all()) and len(np.unique(y)) <= MOST_CLASSES
    return "classes" if whole else "real"


def _labels(
    y: Array, kind: Kind, classes: int | None, what: str, lines: Sequence[int] | None = None
) -> tuple[Array, int]:
    """Return labels in their final type with the number of classes (0 for real targets); `lines` are a file's."""

    def at(wrong: Array) -> str:
        place = tuple(np.argwhere(wrong)[0])
        where = f"row {place[0]}" if lines is None else f"line {lines[place[0]]}"
        return f"{what} has label {y[place]} in {where}"

    if y.dtype.kind not in "biuf":
        raise BadData(f"{what} holds {y.dtype}, not numbers: number the classes from 0")
    if not np.isfinite(y).all():
        raise BadData(f"{at(~np.isfinite(y))}: give a finite label or drop the row")
    if kind == "real":
        return y.astype(np.float32), 0
    if kind != "classes":
        raise BadData(f"kind = {kind!r} is not known: say 'classes' or 'real'")
    for wrong, why in ((y != np.rint(y), "is not whole"), (y < 0, "is negative")):
        if wrong.any():
            raise BadData(f"{at(wrong)}, which {why}: number the classes from 0, or say kind = 'real'")
    if classes and (y >= classes).any():
        allowed = f"classes = {classes} allows 0 to {classes - 1}"
        raise BadData(f"{at(y >= classes)} where {allowed}: correct it or raise classes")
    return y.astype(np.int32), classes or int(y.max()) + 1


def _finite(x: Array, features: Sequence[str], what: str) -> None:
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return
    row, *place = (int(i) for i in np.argwhere(~np.isfinite(x))[0])
    column = repr(features[place[0]]) if features and len(place) == 1 else str(place[0] if len(place) == 1 else place)
    value = x[(row, *place)]
    raise BadData(f"{what} has {value} in row {row}, column {column}: give a finite number or drop the row")
