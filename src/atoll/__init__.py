"""Federated learning: research it, decide on it, run it. The public names of Atoll; each is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "atoll.combine": (
        "Buffered", "Each", "EncryptedSum", "LightSum", "Mean", "Median", "SecureSum", "Sum", "TrimmedMean",
    ),
    "atoll.calibrate": ("calibrate",),
    "atoll.compare": ("compare",),
    "atoll.core.method": ("Diverged",),
    "atoll.core.wire": ("Mismatch",),
    "atoll.data": ("Federated",),
    "atoll.job": ("Channel", "Job", "assemble"),
    "atoll.methods": (
        "Cosine", "Exponential", "FedAvg", "FedProx", "FedSGD", "Steps", "fedadagrad", "fedadam", "fedavgm", "fedyogi",
    ),
    "atoll.methods.server": ("Server",),
    "atoll.models": ("ExampleDP", "Model", "optimiser"),
    "atoll.report.explain": ("explain",),
    "atoll.run": ("Run", "on_ray", "simulate"),
    "atoll.select": (
        "All", "Always", "Batches", "BySize", "Count", "Diurnal", "Flaky", "InTurn", "LeastServed", "Over", "Partition",
        "Poisson", "Trace", "Uniform",
    ),
    "atoll.stages": (
        "Average", "Clip", "Gaussian", "LowRank", "Quantise", "RandomK", "Ring", "Rotate", "Sign", "TopK", "Tree",
        "Weigh",
    ),
    "atoll.stop": ("Budget", "Patience", "Still", "Target", "WallTime"),
}  # fmt: skip
_ROOMS = ("data", "models", "testing")
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_NAMES, *_ROOMS])  # noqa: PLE0605 - computed from the table above
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"atoll.{name}")
    if name not in _NAMES:
        from difflib import get_close_matches

        close = get_close_matches(name, __all__, 1)
        raise AttributeError(
            f"module 'atoll' has no attribute '{name}'" + (f": did you mean '{close[0]}'?" if close else "")
        )
    value = getattr(import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
