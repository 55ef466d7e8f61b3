"""Select: who takes part in a round. A selection knows numbers of parties and history, never data."""

from atoll.select.available import Always, Diurnal, Flaky, Trace
from atoll.select.sample import All, BySize, Count, Over, Poisson, Uniform

__all__ = ["All", "Always", "BySize", "Count", "Diurnal", "Flaky", "Over", "Poisson", "Trace", "Uniform"]
