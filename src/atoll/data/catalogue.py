"""The data sets by name. How each is read is in a module of its own; how it is divided is in `Table.split`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from atoll.data import images, tabular, text
from atoll.data.arrays import from_csv
from atoll.data.errors import BadData, accept, unknown
from atoll.data.federated import Federated, Kind
from atoll.data.population import synthetic
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
