"""Data: what parties hold, where it comes from, how it is dealt out."""

from .arrays import federate, from_arrays, from_csv
from .catalogue import load, names
from .checks import check
from .errors import BadData, DataMissing
from .federated import Federated, Silos
from .partition import SCHEMES
from .population import pooled, synthetic
from .recipe import build
from .table import Table

__all__ = [
    "SCHEMES",
    "BadData",
    "DataMissing",
    "Federated",
    "Silos",
    "Table",
    "build",
    "check",
    "federate",
    "from_arrays",
    "from_csv",
    "load",
    "names",
    "pooled",
    "synthetic",
]
