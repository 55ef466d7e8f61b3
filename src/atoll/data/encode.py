"""How columns of a file become numbers, as a schema states it; and what a file says of its columns by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atoll.core.tree import Array
from atoll.data.columns import Columns, plain_text
from atoll.data.errors import BadData
from atoll.data.schema import GONE, MOST_VALUES, Column, TableSchema, is_number

MOST_TEXT = 50  # distinct values of a text column that still make sensible 0/1 features
MOST_CLASSES = 100  # whole numbers with more distinct values than this are taken for a measurement


def encode(schema: TableSchema, columns: Columns, *, strict: bool = True) -> Array:
    """Encode the features of a file, in the order of a schema. Without `strict` an unknown text is no value."""
    blocks = [_encoded(columns, column, schema.missing, strict) for column in schema.features]
    with np.errstate(over="ignore"):  # too large for 32 bits becomes infinite, which is refused with its place
        return np.concatenate(blocks, axis=1).astype(np.float32)


def labels(schema: TableSchema, columns: Columns) -> Array:
    """Return the labels of a file: places among the classes, or numbers."""
    target = schema.target
    columns.pick(target.name, "column (target)")
    if target.values is None:
        return _numbers(columns, target, schema.missing)
    places = _places(columns, target, schema.missing)
    if (places < 0).any():
        row = int(np.flatnonzero(places < 0)[0])
        cell = plain_text(columns.values[target.name][row])
        known = ", ".join(target.values)
        raise BadData(f"{columns.at(row, target.name)} is {cell!r}, none of the classes {known}: correct it")
    return places


def learn_features(
    columns: Columns, names: Sequence[str], *, units: Mapping[str, str], fill: Mapping[str, float | str],
    missing: Sequence[str] = GONE, whole: bool = True,
) -> tuple[Column, ...]:  # fmt: skip
    """Find out what columns of a file are; without `whole`, what could not be trained on is described all the same."""
    return tuple(_learnt(columns, name, units.get(name, ""), fill.get(name), missing, whole) for name in names)


def _learnt(
    columns: Columns, name: str, unit: str, fill: float | str | None, missing: Sequence[str], whole: bool
) -> Column:
    filled = 0.0 if fill is None and not whole else fill
    try:
        found = columns.numbers(name, None if isinstance(filled, str) else filled, missing)
    except BadData:
        if whole:
            raise
        return Column(name, unit, ())
    if found is not None:
        return Column(name, unit, None, filled)
    gone = columns.missing(name, missing) if fill is not None else np.zeros(len(columns.lines), bool)
    cells = [plain_text(value) for value, out in zip(columns.pick(name), gone, strict=True) if not out]
    kinds = sorted({*cells, *([str(fill)] if fill is not None else [])})
    if len(kinds) > MOST_TEXT:
        if not whole:
            return Column(name, unit, ())
        raise BadData(
            f"column {name!r} of {columns.source} is text with {len(kinds)} distinct values, more than"
            f" {MOST_TEXT}: leave it out of features or group its values"
        )
    return Column(name, unit, tuple(kinds), fill)


def learn_target(columns: Columns, name: str, unit: str = "", kind: str | None = None) -> Column:
    """Find out whether a target has classes, and which."""
    columns.pick(name, "column (target)")
    found = columns.numbers(name)
    if found is None:
        kinds = tuple(str(value) for value in np.unique(columns.text(name)))
        if len(kinds) > MOST_CLASSES:
            raise BadData(f"target {name!r} of {columns.source} has {len(kinds)} distinct texts: choose another column")
        return Column(name, unit, kinds)
    whole = (found == np.rint(found)).all() and len(np.unique(found)) <= MOST_CLASSES
    if kind == "real" or (kind is None and not whole):
        return Column(name, unit)
    top = int(found.max()) + 1 if whole and found.min() >= 0 and found.max() < MOST_VALUES else 0
    return Column(name, unit, tuple(map(str, range(top))) or tuple(plain_text(v) for v in np.unique(found)))


def _encoded(columns: Columns, column: Column, missing: Sequence[str], strict: bool) -> Array:
    if column.values is None:
        return _numbers(columns, column, missing)[:, None]
    places = _places(columns, column, missing)
    if strict and column.values and (places < 0).any():
        row = int(np.flatnonzero(places < 0)[0])
        cell, known = plain_text(columns.values[column.name][row]), ", ".join(column.values)
        raise BadData(f"{columns.at(row, column.name)} is {cell!r}, none of the values {known}: correct it")
    return places[:, None] == np.arange(len(column.values))


def _numbers(columns: Columns, column: Column, missing: Sequence[str]) -> Array:
    found = columns.numbers(column.name, None if column.fill is None else float(column.fill), missing)
    if found is None:
        raise BadData(f"column {column.name!r} of {columns.source} is text, and numbers are expected: correct it")
    return found


def _places(columns: Columns, column: Column, missing: Sequence[str]) -> Array:
    """Find each cell among a column's values; −1 where it is none of them."""
    place = {value: k for k, value in enumerate(column.values or ())}
    cells = [plain_text(value) for value in columns.pick(column.name)]
    found = np.array([place[cell] if cell in place else place.get(_whole_text(cell), -1) for cell in cells], np.int64)
    if column.fill is None:
        return found
    return np.where((found < 0) & columns.missing(column.name, missing), place[str(column.fill)], found)


def _whole_text(cell: str) -> str:
    """Write "1.0" as "1"."""
    return plain_text(float(cell)) if is_number(cell) else cell
