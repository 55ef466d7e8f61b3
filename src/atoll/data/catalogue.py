"""The data sets by name. How each is read is in a module of its own; how it is divided is in `Table.split`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from atoll.data import images, tabular, text
from atoll.data.arrays import describe_csv, from_csv
from atoll.data.errors import BadData, accept, number, options_of, unknown, whole
from atoll.data.federated import Federated, Kind, Silos
from atoll.data.population import synthetic
from atoll.data.schema import GONE, TableSchema
from atoll.data.table import Table


def csv(
    *,
    path: str | Path,
    target: str,
    client: str | None = None,
    holdout: str | float | None = 0.2,
    features: Sequence[str] | None = None,
    kind: Kind | None = None,
    standardise: bool = False,
    units: Mapping[str, str] | None = None,
    fill: Mapping[str, float | str] | None = None,
    missing: Sequence[str] = GONE,
    schema: TableSchema | None = None,
) -> Table:
    """A CSV or Parquet file of one's own: say path, target and perhaps client (the column that names the party)."""
    return from_csv(
        path, target, client, test=holdout, features=features, kind=kind, standardise=standardise, units=units,
        fill=fill, missing=missing, schema=schema,
    )  # fmt: skip


def schema(
    *,
    features: Sequence[Mapping[str, object]],
    target: Mapping[str, object],
    missing: Sequence[str] = GONE,
    standardise: bool = False,
    clients: int = 1,
    samples: int = 1,
    test: float = 0.0,
) -> Federated:
    """No data, only what columns mean: a server states it, parties hold the samples."""
    said = {"features": features, "target": target, "missing": missing, "standardise": standardise}
    return stated(TableSchema.of(said), clients=clients, samples=samples, test=test)


def stated(schema: TableSchema, *, clients: int = 1, samples: int = 1, test: float = 0.0) -> Federated:
    """Describe a federation by what its columns mean. It has no samples: `serve` it, parties bring theirs.

    Args:
        schema: the columns.
        clients: number of parties to reckon with, for `explain`. Default 1.
        samples: of each of them, for the same. Default 1.
        test: above 0 if parties evaluate on test data of their own. Default: they do not.

    Example:
        >>> from atoll.data import Column, TableSchema, stated
        >>> data = stated(TableSchema((Column("age", "years"),), Column("ill", values=("no", "yes"))), clients=3)
        >>> len(data), data.classes, data.features
        (3, 2, ('age',))
    """
    number("test", test, below=1)
    sizes = np.full(whole("clients", clients, 1), whole("samples", samples, 1))
    kinds = schema.target.values
    x, y = np.zeros((0, len(schema.names)), np.float32), np.zeros(0, np.float32 if kinds is None else np.int32)
    held = Silos(x, y, np.concatenate([[0], np.cumsum(sizes)]))
    kind: Kind = "real" if kinds is None else "classes"
    recipe = {"use": "schema", **schema.table()} | ({"test": test} if test else {})
    own = Silos(x, y, np.zeros(clients + 1, np.int64)) if test else None
    return Federated(held, None, own, kind, len(kinds or ()), schema.names, (), recipe, schema=schema)


def saved(*, folder: str | Path) -> Federated:
    """A federation written by Federated.save, mapped from its folder."""
    return Federated.open(folder)


TABLES: Mapping[str, Callable[..., Table]] = MappingProxyType(
    {
        "digits": tabular.digits,
        "breast_cancer": tabular.breast_cancer,
        "wine": tabular.wine,
        "diabetes": tabular.diabetes,
        "mnist": images.mnist,
        "mnist_t10k": images.mnist_t10k,
        "mnist_writers": images.mnist_writers,
        "fashion_mnist": images.fashion_mnist,
        "shakespeare": text.shakespeare,
        "a9a": tabular.a9a,
        "adult": tabular.adult,
        "credit_default": tabular.credit_default,
        "heart_disease": tabular.heart_disease,
        "california_housing": tabular.california_housing,
        "csv": csv,
    }
)
FEDERATIONS: Mapping[str, Callable[..., Federated]] = MappingProxyType(
    {"synthetic": synthetic, "saved": saved, "schema": schema}
)


def describe(recipe: Mapping[str, object]) -> TableSchema | None:
    """Say what the file of a recipe holds, before anybody says what it should; None of what is no file."""
    if recipe.get("use") != "csv":
        return None
    own = {key: value for key, value in recipe.items() if key in options_of(csv)}
    accept("csv", csv, own)
    return describe_csv(str(own.pop("path")), **own)


def names() -> dict[str, str]:
    """Return every data set by name, with its purpose in one line.

    Example:
        >>> import atoll
        >>> "digits" in atoll.data.names()
        True
    """
    return {name: (maker.__doc__ or "").splitlines()[0] for name, maker in {**TABLES, **FEDERATIONS}.items()}


def load(name: str, **options: object) -> Table:
    """Load a data set by name. It is downloaded if it is neither included nor in a data folder.

    Args:
        name: of a data set; `names()` lists them.
        **options: of this data set, such as `holdout`, the fraction of the central test set; `atoll list data` prints
            them.

    Example:
        >>> import atoll
        >>> len(atoll.data.load("wine", holdout=0.5))
        89
    """
    if name in FEDERATIONS:
        raise BadData(f"{name} is a federation already, not a table to split: make it with build or {name}(…)")
    if name == "arrays":
        raise BadData("arrays given in Python cannot be loaded by name: write them to a file and use 'csv'")
    if name not in TABLES:
        raise unknown("data set", name, names())
    accept(name, TABLES[name], options)
    table = TABLES[name](**options)
    said = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    return replace(table, name=name, recipe=said)
