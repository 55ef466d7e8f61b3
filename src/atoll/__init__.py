"""Federated learning: research it, decide on it, run it. The public names of Atoll; each is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "atoll.combine": (
        "Buffered", "Each", "EncryptedSum", "LightSum", "Mean", "Median", "SecureSum", "Sum", "TrimmedMean",
    ),
    "atoll.decide.calibrate": ("calibrate",),
    "atoll.decide.compare": ("compare",),
    "atoll.core.errors": ("AtollError",),
    "atoll.core.method": ("Diverged",),
    "atoll.core.wire": ("Mismatch",),
    "atoll.data": ("Federated",),
    "atoll.job.assemble": ("assemble",),
    "atoll.job.job": ("Channel", "Job"),
    "atoll.job.roles": ("RoleJob",),
    "atoll.methods": (
        "Cosine", "Exponential", "FedAvg", "FedProx", "FedSGD", "Steps", "fedadagrad", "fedadam", "fedavgm", "fedyogi",
    ),
    "atoll.methods.server": ("ServerOptimiser",),
    "atoll.models": ("ExampleDP", "Model", "optimiser"),
    "atoll.programs.vertical": ("JointMoments",),
    "atoll.report.explain": ("explain",),
    "atoll.runtimes.folder": ("open_run",),
    "atoll.runtimes.roles.simulate": ("simulate_roles",),
    "atoll.runtimes.run": ("Run", "on_ray", "simulate"),
    "atoll.select": (
        "All", "Always", "Batches", "BySize", "Count", "Diurnal", "Flaky", "RoundRobin", "LeastServed", "Oversample",
        "Partition", "Poisson", "Trace", "Uniform",
    ),
    "atoll.stages": (
        "Average", "Clip", "Gaussian", "LowRank", "Quantise", "RandomK", "Ring", "Rotate", "Sign", "TopK", "TrainLoss",
        "TreeNoise", "Weigh",
    ),
    "atoll.stop": ("Budget", "Patience", "Converged", "Target", "WallTime"),
}  # fmt: skip
_PACKAGES = ("data", "metrics", "models", "testing")
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_NAMES, *_PACKAGES])  # noqa: PLE0605 - computed from the table above
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"atoll.{name}")
    if name not in _NAMES:
        from atoll.core.errors import nearest
        from atoll.core.renames import public

        hint = f"it is called '{now}' now" if (now := public(name)) else nearest(name, __all__, "see dir(atoll)")
        raise AttributeError(f"module 'atoll' has no attribute '{name}': {hint}")
    value = getattr(import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
