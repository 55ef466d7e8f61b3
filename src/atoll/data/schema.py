"""What columns mean: names, order, types, units, classes, missing cells. How files are read is not known here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from atoll.core.errors import nearest
from atoll.core.tree import Array
from atoll.data.errors import BadData

MOST_COLUMNS = 4096
MOST_VALUES = 1000
GONE = ("",)  # cells that stand for a missing value where nothing else is said
_Word = Annotated[str, Meta(max_length=200)]
_Words = Annotated[tuple[_Word, ...], Meta(max_length=MOST_VALUES)]


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column: numbers, or text with these values.

    Args:
        name: of the column.
        unit: of its numbers, any text. Default: none is stated.
        values: of a text column, in the order of its 0/1 features, or the classes of a target. Default: numbers.
        fill: what stands for a missing cell: a number, or one of the values. Default: no cell may be missing.

    Example:
        >>> import atoll
        >>> atoll.data.Column("cholesterol", unit="mg/dl", fill=240.0).unit
        'mg/dl'
    """

    name: _Word
    unit: Annotated[str, Meta(max_length=100)] = ""
    values: _Words | None = None  # (): text whose values are not told
    fill: float | _Word | None = None

    def __post_init__(self) -> None:
        for text in (self.name, self.unit, *(self.values or ()), *([self.fill] if isinstance(self.fill, str) else [])):
            if not text.isprintable():
                raise ValueError(f"{text[:40]!r} has control characters")
        if not self.name:
            raise ValueError("a column has no name")
        if self.values and (len(set(self.values)) < len(self.values) or self.fill not in (None, *self.values)):
            raise ValueError(f"column {self.name!r}: a value stands twice, or fill = {self.fill!r} is none of them")
        if self.values is None and self.fill is not None and not (self.number and np.isfinite(float(self.fill))):
            raise ValueError(f"column {self.name!r}: fill = {self.fill!r} is no finite number")

    @property
    def number(self) -> bool:
        return self.values is None and not isinstance(self.fill, str)

    @property
    def features(self) -> list[str]:
        return [self.name] if self.values is None else [f"{self.name}={value}" for value in self.values]


class TableSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The columns of a table: what a job states, what a party says of its file.

    Args:
        features: the columns that are learnt from, in order.
        target: the column to predict. With values it has classes, numbered in that order.
        missing: cells that stand for a missing value. Default: empty ones.
        standardise: whether each party shifts and scales its number columns by its own rows. Default false.
        gaps: names of columns with missing cells, as a party says of its file.

    Example:
        >>> import atoll
        >>> target = atoll.data.Column("ill", values=("no", "yes"))
        >>> schema = atoll.data.TableSchema((atoll.data.Column("age", "years"),), target)
        >>> atoll.data.stated(schema, clients=3).classes
        2
    """

    features: Annotated[tuple[Column, ...], Meta(max_length=MOST_COLUMNS)]
    target: Column
    missing: _Words = GONE
    standardise: bool = False
    gaps: Annotated[tuple[_Word, ...], Meta(max_length=MOST_COLUMNS)] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in (*self.features, self.target)]
        twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
        if twice:
            raise ValueError(f"column {twice[0]!r} is named twice")
        if not all(text.isprintable() for text in (*self.missing, *self.gaps)):
            raise ValueError("a text has control characters")

    @property
    def names(self) -> tuple[str, ...]:
        """The features as a model sees them: a number each, and one for each value of a text."""
        return tuple(name for column in self.features for name in column.features)

    @property
    def numeric(self) -> Array:
        """Which features are numbers of the file, not 0/1 of a text."""
        return np.array([column.values is None for column in self.features for _ in column.features], bool)

    def table(self) -> dict[str, object]:
        """Say it in the words of a job file."""
        said: dict[str, object] = msgspec.to_builtins(self)
        return said

    @staticmethod
    def of(table: Mapping[str, object]) -> TableSchema:
        """Read what a job file says, and refuse what states too little to read a file by."""
        try:
            made = msgspec.convert(table, TableSchema)
        except (msgspec.ValidationError, ValueError) as error:
            raise BadData(f"the schema of the data cannot be: {error}") from None
        for column in made.features:
            if column.values == ():
                raise BadData(f"the schema of the data: text column {column.name!r} states no values: name them")
        if not made.features or (made.target.values is not None and len(made.target.values) < 2):
            raise BadData("the schema of the data: state at least one feature, and a target's classes, two or more")
        return made

    def told(self) -> TableSchema:
        """Leave out what no one else needs to know of a party: the values of its texts, and what it fills in."""
        shown = tuple(Column(c.name, c.unit, None if c.values is None else ()) for c in self.features)
        target = Column(self.target.name, self.target.unit, self.target.values)
        return TableSchema(shown, target, gaps=self.gaps)

    def refuse(self, theirs: TableSchema, whose: str) -> None:
        """Refuse, in one sentence, data that does not hold what is stated here. Another order is no reason."""
        objection = next(self._objections(theirs), None)
        if objection is not None:
            raise BadData(f"{whose}: {objection}")

    def _objections(self, theirs: TableSchema) -> Iterator[str]:
        held = {column.name: column for column in (*theirs.features, theirs.target)}
        for column in (*self.features, self.target):
            if column.name not in held:
                what = "column" if column is not self.target else "column (target)"
                yield f"there is no {what} {column.name!r}, which the job needs; {nearest(column.name, held)}"
            else:
                yield from self._differs(column, held[column.name], gap=column.name in theirs.gaps)
        if self.target.name in held and theirs.target.name != self.target.name:
            yield f"its target is {theirs.target.name!r}, and the job predicts {self.target.name!r}: say so in its data"

    def _differs(self, mine: Column, theirs: Column, *, gap: bool) -> Iterator[str]:
        about = f"column {mine.name!r}"
        if mine.unit and theirs.unit != mine.unit:
            said = f"is in {theirs.unit!r}" if theirs.unit else "states no unit"
            remedy = f'convert it if need be, and say units = {{ {mine.name} = "{mine.unit}" }}'
            yield f"{about} {said}, and the job expects {mine.unit!r}: {remedy}"
        if gap and mine.fill is None:
            yield f"{about} has missing values, and the job states no `fill` for it: fill them in or drop the rows"
        if mine is self.target and mine.values is not None:
            yield from _other_classes(mine, theirs)
        elif mine.values is None and theirs.values is not None and not all(map(is_number, theirs.values or "?")):
            yield f"{about} is text, and the job expects numbers: correct it"


def _other_classes(mine: Column, theirs: Column) -> Iterator[str]:
    known = ", ".join(mine.values or ())
    if theirs.values is None:
        yield f"column {mine.name!r} holds numbers, and the job expects the classes {known}: correct it"
    other = [value for value in theirs.values or () if value not in (mine.values or ())]
    if other:
        yield f"column {mine.name!r} has class {other[0]!r}, and the job's classes are {known}: correct it"


def is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
