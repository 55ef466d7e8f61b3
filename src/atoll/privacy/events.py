"""What one round spends of the privacy budget, as a record that an accountant can read."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite
from typing import Literal, get_args

from atoll.core.errors import Mismatch

SamplingKind = Literal["poisson", "fixed", "none"]
Unit = Literal["party", "example"]
Mechanism = Literal["gaussian", "local", "tree"]


@dataclass(frozen=True)
class Spend:
    """What one round spends: its noise, its sampling and the protected unit, as an accountant reads them.

    Args:
        multiplier: standard deviation of the noise in units of the L2 bound (the clip) of one unit's vector, above 0,
            whatever the neighbouring relation. The accountant knows that replacing a vector moves a sum by two bounds.
        sampling: how units are sampled: "poisson", "fixed" (a sample of fixed size) or "none" (the default).
        rate: probability that a unit takes part, above 0 and at most 1. Default 1.0.
        unit: what is protected, "party" (the default) or "example".
        mechanism: "gaussian" (noise on a sum, the default), "local" (at each party) or "tree".
        population: number of units to sample from. "fixed" needs it.
        times: runs of the mechanism in one round, each with its own sample (the steps of DP-SGD), 1 or more. Default 1.
        epoch: for "tree", rounds of one tree, in which a unit takes part at most once.
        told: whether it is told that a unit takes part, or how many do. What can differ then is whether it gives
            something or nothing. Default false.

    Example:
        >>> from atoll.privacy import Spend
        >>> Spend(1.0, "poisson", 0.01).relation
        'add-or-remove-one'
    """

    multiplier: float
    sampling: SamplingKind = "none"
    rate: float = 1.0  # the probability that a unit takes part
    unit: Unit = "party"
    mechanism: Mechanism = "gaussian"
    population: int | None = None  # units to sample from
    times: int = 1  # runs of the mechanism a round, each on its own draw of the sample (local DP-SGD steps)
    epoch: int | None = None  # rounds in one tree, in which a unit takes part at most once
    told: bool = False

    def __post_init__(self) -> None:
        for name, kinds in (("sampling", SamplingKind), ("unit", Unit), ("mechanism", Mechanism)):
            value = getattr(self, name)
            if value not in get_args(kinds):
                raise Mismatch(f"{name}={value!r}: choose one of {', '.join(get_args(kinds))}")
        if not (self.multiplier > 0 and isfinite(self.multiplier)):
            raise Mismatch(f"multiplier={self.multiplier}: privacy needs noise, a finite multiplier above 0")
        if not 0 < self.rate <= 1:
            raise Mismatch(f"rate={self.rate}: a rate is above 0 and at most 1")
        if self.times < 1:
            raise Mismatch(f"times={self.times}: a round runs its mechanism at least once")
        if self.population is not None and self.population < 1:
            raise Mismatch(f"population={self.population}: somebody must take part, 1 or more")
        self._check_sampling()
        self._check_mechanism()

    def _check_sampling(self) -> None:
        if self.sampling == "none" and self.rate != 1:
            raise Mismatch(
                f"rate={self.rate}: without declared sampling nothing is amplified, "
                "so leave the rate at 1 or say how units are sampled"
            )
        if self.sampling == "fixed" and self.population is None:
            raise Mismatch("population=None: a sample of fixed size needs the number of units it is drawn from")

    def _check_mechanism(self) -> None:
        if self.mechanism == "local" and self.sampling != "none":
            raise Mismatch(
                f"sampling={self.sampling!r}: whoever sees a local report knows whose it is, so use sampling='none'"
            )
        if self.mechanism != "tree":
            if self.epoch is not None:
                raise Mismatch(f"epoch={self.epoch}: only mechanism='tree' has epochs, leave it out")
            return
        if self.epoch is None or self.epoch < 1:
            raise Mismatch(f"epoch={self.epoch}: mechanism='tree' needs the number of rounds in one tree, 1 or more")
        if self.sampling != "none" or self.times != 1:
            raise Mismatch(
                f"sampling={self.sampling!r}, times={self.times}: tree noise claims no sampling and runs once a round, "
                "so use sampling='none' and times=1"
            )

    @property
    def relation(self) -> str:
        """Which two federations the promise calls neighbours.

        A local report is there for all to see, and so is the size of a fixed sample: what can differ is its content.
        """
        if self.mechanism != "tree" and (self.sampling == "fixed" or self.mechanism == "local"):
            return "replace-one"
        return "zero-out-one" if self.told or self.mechanism == "tree" else "add-or-remove-one"

    @property
    def sensitivity(self) -> float:
        """How far a neighbour moves the sum, in units of the L2 bound of one vector."""
        return 2.0 if self.relation == "replace-one" else 1.0

    @property
    def sample(self) -> int | None:
        """Units in a sample of fixed size; a fraction of a unit counts as a whole one."""
        if self.sampling != "fixed" or self.population is None:
            return None
        return max(ceil(self.rate * self.population - 1e-9), 1)

    def runs(self, rounds: int) -> int:
        """Count how often the noise of one run meets the same unit in so many rounds.

        In a tree, a unit's vector is part of one node on every level (Kairouz et al. 2021, appendix D).
        """
        if self.epoch is None:
            return rounds * self.times
        trees, rest = divmod(rounds, self.epoch)
        return trees * self.epoch.bit_length() + rest.bit_length()
