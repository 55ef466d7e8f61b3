"""The data sets by name. How each is read is in its own room; how it is dealt out is in `Table.split`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import images, tabular, text
from .arrays import from_csv
from .errors import BadData, accept, unknown
from .federated import Federated, Kind
from .population import synthetic
from .table import Table


def csv(
    *,
    path: str | Path,
    target: str,
    client: str | None = None,
    holdout: str | float | None = 0.2,
    features: Sequence[str] | None = None,
    kind: Kind | None = None,
    standardise: bool = False,
) -> Table:
    """A CSV or Parquet file of one's own: say path, target and perhaps client (the column that names the party)."""
    return from_csv(path, target, client, test=holdout, features=features, kind=kind, standardise=standardise)


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
FEDERATIONS: Mapping[str, Callable[..., Federated]] = MappingProxyType({"synthetic": synthetic, "saved": saved})


def names() -> dict[str, str]:
    """Return every data set with its purpose in one line."""
    return {name: (maker.__doc__ or "").splitlines()[0] for name, maker in {**TABLES, **FEDERATIONS}.items()}


def load(name: str, **options: Any) -> Table:
    """Load a data set by name; `names()` lists them."""
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
