"""Send few of the numbers: the largest of each party, or a random choice that all parties share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.keys import draw
from atoll.core.tree import Array
from atoll.core.wire import Codec, DecodeContext, EncodeContext, Stage, Wire
from atoll.stages.encodings import Address, Plain, SparseEncoding, common, compressing, real, steady, written


@dataclass(frozen=True)
class TopK(Stage):
    """Send the largest numbers of a vector, this fraction of them, each with its position.

    Proves: an encoding of the chosen numbers and their positions; without feedback it keeps the norm bound.
    Needs: real numbers. It does not work with Ring() and hidden sums.

    Args:
        fraction: fraction of the numbers that is sent, above 0 and at most 1. Default 0.01.
        feedback: whether a party adds what it did not send to its next vector (Karimireddy et al. 2019). This removes
            the norm bound, because a vector can contain the rest of an earlier one. Default true.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> check_stage(atoll.TopK(0.1, feedback=False), first=(atoll.Clip(1.0),)).l2
        1.0
    """

    fraction: float = 0.01
    feedback: bool = True

    def __post_init__(self) -> None:
        _fraction("TopK", self.fraction)

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "TopK()", writes=True)
        if self.feedback:
            steady(wire, "TopK(feedback=True)")
        k = _count(self.fraction, wire.row.size - wire.tail)

        def largest(y: Array, about: EncodeContext | DecodeContext) -> Array:
            return np.stack([_largest(row, k) for row in y])

        after = replace(written(wire, SparseEncoding(k, Plain(wire.row.dtype))), l2=None if self.feedback else wire.l2)
        return after, compressing(wire, self.feedback, largest)


@dataclass(frozen=True)
class RandomK(Stage):
    """Send this fraction of the numbers, drawn anew each round and the same for all parties: no position is sent.

    The choice is linear, so sums, rings, masks and noise work on what is sent. Without feedback the server multiplies
    by size / k, so that the mean over rounds is unbiased.

    Proves: nothing new; without feedback it keeps the norm bound.
    Needs: real numbers.

    Args:
        fraction: fraction of the numbers that is sent, above 0 and at most 1. Default 0.1.
        feedback: whether a party adds what it did not send to its next vector. This removes the norm bound. Default
            true.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> check_stage(atoll.RandomK(0.5, feedback=False), first=(atoll.Clip(1.0),)).l2
        1.0
    """

    fraction: float = 0.1
    feedback: bool = True

    def __post_init__(self) -> None:
        _fraction("RandomK", self.fraction)

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "RandomK()")
        if self.feedback:
            steady(wire, "RandomK(feedback=True)")
        size = wire.row.size - wire.tail
        k = _count(self.fraction, size)

        def pick(y: Array, about: EncodeContext | DecodeContext) -> Array:
            return y[:, _chosen(common("random k", about), size, k)]

        def spread(y: Array, about: EncodeContext | DecodeContext) -> Array:
            whole = np.zeros((len(y), size), y.dtype)
            whole[:, _chosen(common("random k", about), size, k)] = y
            return whole

        after = wire.of_size(k + wire.tail, None if self.feedback else wire.l2)
        return after, compressing(wire, self.feedback, pick, spread, 1.0 if self.feedback else size / k)


def _largest(row: Array, k: int) -> Array:
    """Keep the k largest; of equals at the limit, the first."""
    size = np.abs(row)
    limit = np.partition(size, -k)[-k]
    keep = size > limit
    keep[np.flatnonzero(size == limit)[: k - np.count_nonzero(keep)]] = True
    return np.where(keep, row, row.dtype.type(0)) + row.dtype.type(0)  # no minus zero


@lru_cache(maxsize=4)
def _chosen(address: Address, size: int, k: int) -> Array:
    at = np.sort(np.argsort(draw(*address, np.arange(size)), kind="stable")[:k])
    at.setflags(write=False)
    return at


def _fraction(name: str, fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise Mismatch(f"{name}(fraction={fraction}): a fraction of the numbers, above 0 and at most 1")


def _count(fraction: float, size: int) -> int:
    return max(1, round(fraction * size))
