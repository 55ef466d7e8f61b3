"""Columns of a CSV or Parquet file, as text or numbers. What a column means is decided elsewhere."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from atoll.core.tree import Array
from atoll.data.errors import BadData, unknown

Values = Sequence[str] | Array


@dataclass(frozen=True, eq=False)
class Columns:
    """Named columns, each text or numbers, with the line of the file that each row came from."""

    source: str
    values: Mapping[str, Values]
    lines: Sequence[int]
    unit: str = "line"

    def pick(self, name: str, what: str = "column") -> Values:
        if name not in self.values:
            raise unknown(f"{what} in {self.source}", name, self.values)
        return self.values[name]

    def at(self, row: int, name: str) -> str:
        """Say where a cell is, for people."""
        return f"{self.source}, {self.unit} {self.lines[row]}, column {name!r}"

    def missing(self, name: str, codes: Sequence[str]) -> Array:
        """Say which cells of a column are missing: those written as one of these texts, and empty ones of Parquet."""
        known = {*codes, "nan"} if isinstance(self.pick(name), np.ndarray) else {*codes}
        return np.array([plain_text(value) in known for value in self.pick(name)], bool)

    def numbers(self, name: str, fill: float | None = None, missing: Sequence[str] = ()) -> Array | None:
        """Return a column as finite numbers, or None where it is text (most of its cells are no numbers).

        `fill` takes the place of cells that are written as one of the texts in `missing`.
        """
        values: Sequence[str | float] | Array = self.pick(name)
        if fill is not None:
            gone = self.missing(name, missing)
            values = [fill if out else value for value, out in zip(values, gone, strict=True)]
            if gone.all():
                return np.full(len(values), fill, np.float64)
        try:
            found = np.fromiter((float(v) for v in values), np.float64, len(values))
        except ValueError:
            bad = [row for row, value in enumerate(values) if not _is_number(value)]
            if 2 * len(bad) > len(values):
                return None
            cell = str(values[bad[0]])
            if not cell.strip():
                remedy = "is empty: fill it in or drop the row"
            else:
                remedy = f"is {cell!r} where the column holds numbers: correct it"
            raise BadData(f"{self.at(bad[0], name)} {remedy}") from None
        if not np.isfinite(found).all():
            row = int(np.flatnonzero(~np.isfinite(found))[0])
            raise BadData(f"{self.at(row, name)} is {found[row]}: give a finite number or drop the row")
        return found

    def text(self, name: str) -> Array:
        """Return a column as text without blanks around it."""
        return np.array([str(value).strip() for value in self.pick(name)])


def plain_text(value: object) -> str:
    """Write a cell as text without blanks around it; a whole number of a Parquet file as one."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]  # whatever float refuses is no number
    except ValueError:
        return False
    return True


def read_columns(path: str | Path) -> Columns:
    """Read a .csv, .csv.gz or .parquet file whole."""
    path = Path(path)
    if not path.is_file():
        raise BadData(f"{path} is not a file: give the path of a CSV or Parquet file")
    if path.suffix in (".parquet", ".pq"):
        return _parquet(path)
    try:
        with _opened(path) as lines:
            return parse_csv(lines, str(path))
    except UnicodeDecodeError as problem:
        raise BadData(f"{path} is not UTF-8 text (byte {problem.start}): save it as UTF-8") from problem
    except (OSError, EOFError) as problem:
        raise BadData(f"{path} cannot be read ({problem}): give a whole file") from problem


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def parse_csv(lines: IO[str], source: str) -> Columns:
    """Read comma-separated text whose first line names the columns."""
    reader = csv.reader(lines, strict=True)
    rows: list[list[str]] = []
    places: list[int] = []
    try:
        for row in reader:
            if row:
                rows.append(row)
                places.append(reader.line_num)
    except csv.Error as problem:
        raise BadData(f"{source}, line {reader.line_num} is not CSV ({problem}): correct the quotes there") from problem
    if len(rows) < 2:
        raise BadData(f"{source} holds no samples: give a file with a line of column names and a line for each sample")
    header = [name.strip() for name in rows[0]]
    twice = [name for name in header if header.count(name) > 1 or not name]
    if twice:
        raise BadData(f"{source}, line {places[0]} has column name {twice[0]!r} twice or empty: name each column once")
    for row, line in zip(rows, places, strict=True):
        if len(row) != len(header):
            which = f"nothing for column {header[len(row)]!r}" if len(row) < len(header) else "more cells than columns"
            raise BadData(f"{source}, line {line} has {len(row)} cells of {len(header)}, {which}: correct that line")
    values = dict(zip(header, zip(*rows[1:], strict=True), strict=True))
    return Columns(source, values, places[1:])


def _parquet(path: Path) -> Columns:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as problem:
        raise BadData(f"reading {path} needs pyarrow: pip install 'atoll[parquet]'") from problem
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as problem:
        raise BadData(f"{path} is not a Parquet file ({problem}): write it again") from problem
    if not table.num_rows:
        raise BadData(f"{path} holds no samples: give a file with at least one row")
    values: dict[str, Values] = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if pa.types.is_integer(column.type) and not column.null_count:
            values[name] = column.to_numpy()  # ids beyond 2^53 stay apart
        elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
            values[name] = np.array([np.nan if v is None else float(v) for v in column.to_pylist()])
        else:
            values[name] = ["" if v is None else str(v) for v in column.to_pylist()]
    return Columns(str(path), values, range(1, table.num_rows + 1), "row")
