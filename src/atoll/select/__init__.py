"""Select: who takes part in a round. A selection knows numbers of parties and history, never data."""

from atoll.select.available import Always, Diurnal, Flaky, Trace
from atoll.select.batches import Batches, LeastServed, Partition
from atoll.select.sample import All, BySize, Count, Oversample, Poisson, RoundRobin, Uniform

__all__ = [
    "All",
    "Always",
    "Batches",
    "BySize",
    "Count",
    "Diurnal",
    "Flaky",
    "LeastServed",
    "Oversample",
    "Partition",
    "Poisson",
    "RoundRobin",
    "Trace",
    "Uniform",
]  # fmt: skip
