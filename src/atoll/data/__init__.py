"""Data: what parties hold, where it comes from, how it is divided."""

from atoll.data.arrays import federate, from_arrays, from_csv
from atoll.data.catalogue import load, names, stated
from atoll.data.checks import check
from atoll.data.errors import BadData, DataMissing
from atoll.data.federated import Federated, Silos
from atoll.data.partition import SCHEMES
from atoll.data.population import pooled, synthetic
from atoll.data.recipe import build
from atoll.data.schema import Column, TableSchema
from atoll.data.table import Table

__all__ = [
    "SCHEMES",
    "BadData",
    "Column",
    "DataMissing",
    "Federated",
    "Silos",
    "Table",
    "TableSchema",
    "build",
    "check",
    "federate",
    "from_arrays",
    "from_csv",
    "load",
    "names",
    "pooled",
    "stated",
    "synthetic",
]
