"""Example-level differential privacy in local training (Abadi et al. 2016): the promise, its clip and its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import floor, isfinite, log2, sqrt
from types import ModuleType

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.given import Part
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.core.world import World
from atoll.models.batches import poisson
from atoll.models.layers import Tensor
from atoll.privacy.discrete import SecureBits, discrete_gaussian

HUGE = 1e37  # one over a float32 beyond this may be taken for zero


@dataclass(frozen=True)
class ExampleDP(Part):
    """DP-SGD in local training: clip the gradient of each example and add noise to their sum (Abadi et al. 2016).

    A step includes each example independently with probability q and divides by the expected batch size. In a
    simulation the noise is derived from the seed. Between real parties it is a discrete Gaussian on a fine grid; the
    noise and the batches come from the operating system of the party.

    Proves: differential privacy of each example of a party, against everybody except that party.
    Reveals: a party's number of examples, and the scores that it measures.

    Args:
        clip: largest L2 norm of the gradient of one example, above 0. Default 1.0.
        multiplier: standard deviation of the noise in units of `clip`, 0 or more. 0 adds no noise and protects nothing.
            Default 1.1.

    Example:
        >>> import atoll
        >>> method = atoll.FedAvg(atoll.models.softmax(), example_dp=atoll.ExampleDP(clip=1.0, multiplier=1.2))
        >>> method.example_steps(600)  # of a party with 600 examples: the sampling rate q, and the steps of one round
        (0.016666666666666666, 60)
    """

    clip: float = 1.0
    multiplier: float = 1.1

    def __post_init__(self) -> None:
        if not (self.clip > 0 and isfinite(self.clip)):
            raise Mismatch(f"ExampleDP(clip={self.clip}): a clip is a positive number")
        if not (self.multiplier >= 0 and isfinite(self.multiplier)):
            raise Mismatch(f"ExampleDP(multiplier={self.multiplier}): a noise multiplier is a number from 0 on")

    @staticmethod
    def per_round(n: int, epochs: int, batch: int | None) -> tuple[float, int]:
        """Return what a ledger needs of a party with n examples: the sampling rate q and the steps of one round."""
        return poisson(n, epochs, batch)

    def noise(self, group: Group, k: int, step: int, size: int, dtype: str) -> Array:
        """Draw the noise of one step of the group's k-th party: the same numbers for every backend."""
        wide = np.float64 if dtype == "float64" else np.float32
        sigma, grid = self.multiplier * self.clip, self.grid(group.world)
        if grid:
            return (discrete_gaussian(sigma / grid, size, SecureBits()) * grid).astype(wide)
        source = group.world.private("example noise", group.t, group.me[k], step)
        draws = source.generator().standard_normal(size, wide) if sigma else np.zeros(size, wide)
        return np.multiply(draws, wide(sigma), out=draws)

    def grid(self, world: World) -> float:
        """Return the step that sums are rounded to before real noise of whole steps is added; 0 in a simulation.

        Without it the last digits of a float tell what the noise was added to (Mironov 2012). Sixteen deviations are
        exact in single precision.
        """
        sigma = self.multiplier * self.clip
        return 2.0 ** (floor(log2(sigma)) - 19) if world.secret and sigma else 0.0


def expected(size: Array, batch: int | None) -> Array:
    """Return every party's expected number of examples in a step, and 1 for those that have none."""
    return np.maximum(size if batch is None else np.minimum(size, batch), 1)


def clipped(xp: ModuleType, leaves: Sequence[Tensor], clip: float) -> list[Tensor]:
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
