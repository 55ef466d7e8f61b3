"""Example-level differential privacy in local training (Abadi et al. 2016): the promise, its clip and its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite, sqrt
from typing import Any

import numpy as np

from atoll.core.keys import rng
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.models.batches import poisson

HUGE = 1e37  # one over a float32 beyond this may be taken for zero


@dataclass(frozen=True)
class ExampleDP:
    """Hide every single example of a party: clip each one's gradient in L2, add noise of multiplier·clip to their sum.

    A step sees each example with probability q, by its own coin, and divides by the expected batch, never by the one it
    drew. What a party sends is protected; its number of examples is public, and so is what it measures (its scores).
    A multiplier of 0 adds no noise and promises nothing.

    The noise is simulated: it has an address and the rounding of floats, both of which an attacker could use. Where
    parties are real, it has to come from the operating system.
    """

    clip: float = 1.0
    multiplier: float = 1.1

    def __post_init__(self) -> None:
        if not (self.clip > 0 and isfinite(self.clip)):
            raise ValueError(f"ExampleDP(clip={self.clip}): a clip is a positive number")
        if not (self.multiplier >= 0 and isfinite(self.multiplier)):
            raise ValueError(f"ExampleDP(multiplier={self.multiplier}): a noise multiplier is a number from 0 on")

    @staticmethod
    def per_round(n: int, epochs: int, batch: int | None) -> tuple[float, int]:
        """Return what a ledger needs of a party with n examples: the sampling rate q and the steps of one round."""
        return poisson(n, epochs, batch)

    def noise(self, group: Group, k: int, step: int, size: int, dtype: str) -> Array:
        """Draw the noise of one step of the group's k-th party: the same numbers for every backend."""
        wide = np.float64 if dtype == "float64" else np.float32
        draws = rng(group.seed, "example noise", group.t, group.me[k], step).standard_normal(size, wide)
        return np.multiply(draws, wide(self.multiplier * self.clip), out=draws)


def expected(size: Array, batch: int | None) -> Array:
    """Return every party's expected number of examples in a step, and 1 for those that have none."""
    return np.maximum(size if batch is None else np.minimum(size, batch), 1)


def clipped(xp: Any, leaves: Sequence[Any], clip: float) -> list[Any]:
    """Scale rows down to at most this L2 norm; a row that is not finite, or hardly, becomes zero.

    A row is cut into leaves, each (…, rows, numbers); `xp` is the framework that they are arrays of.
    """
    # Dividing by the largest entry first keeps squares from overflowing, which would hide how long a row is.
    top = reduce(xp.maximum, [xp.amax(xp.abs(leaf), -1) for leaf in leaves])[..., None]
    some = xp.where(top > 0, top, 1)
    square = sum(xp.sum((leaf / some) ** 2, -1) for leaf in leaves)[..., None]
    length = xp.sqrt(xp.where(square > 0, square, 1))
    # A sum of d rounded squares is off by a few √d units in the last place: aim below the clip by as much.
    d = sum(leaf.shape[-1] for leaf in leaves)
    aim = clip * (1 - float(xp.finfo(leaves[0].dtype).eps) * (8 + sqrt(d)))
    long, finite = some * length > aim, (top < HUGE) & xp.isfinite(square)
    # The two factors are multiplied one after the other: their product alone can be too small for a float.
    return [xp.where(finite, xp.where(long, leaf / some * (aim / length), leaf), 0) for leaf in leaves]
