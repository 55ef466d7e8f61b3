"""Select: who takes part in a round. A selection knows numbers of parties and history, never data."""

from atoll.select.available import Always, Diurnal, Flaky, Trace
from atoll.select.batches import Batches, LeastServed, Partition
from atoll.select.sample import All, BySize, Count, InTurn, Over, Poisson, Uniform

__all__ = [
    "All", "Always", "Batches", "BySize", "Count", "Diurnal", "Flaky", "InTurn", "LeastServed", "Over", "Partition",
    "Poisson", "Trace", "Uniform",
]  # fmt: skip
