"""Send few of the numbers: the largest of each party, or a random choice that all parties share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from atoll.core.keys import draw
from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Heard, Wire
from atoll.stages.forms import Address, Plain, Sparse, common, compressing, real, steady, tail, written


@dataclass(frozen=True)
class TopK:
    """Send the largest numbers of a vector, this fraction of them, each with its position.

    With `feedback` a party adds what it did not send to its next vector (Karimireddy et al. 2019), so nothing is lost
    for good; the bound is, since a vector may come with the rest of an earlier one. Without, the bound stays.
    """

    fraction: float = 0.01
    feedback: bool = True

    def __post_init__(self) -> None:
        _fraction("TopK", self.fraction)

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "TopK()", writes=True)
        if self.feedback:
            steady(wire, "TopK(feedback=True)")
        k = _count(self.fraction, wire.size - tail(wire))

        def largest(y: Array, about: About | Heard) -> Array:
            return np.stack([_largest(row, k) for row in y])

        after = replace(wire, form=written(Sparse(k, Plain(wire.dtype)), wire), l2=None if self.feedback else wire.l2)
        return after, compressing(wire, self.feedback, largest)


@dataclass(frozen=True)
class RandomK:
    """Send this fraction of the numbers, drawn anew each round and the same for all parties: no position travels.

    It is linear, so sums, rings, masks and noise work on what is sent. With `feedback` a party adds what it did not
    send to its next vector, and the bound is erased. Without, the bound stays and the server multiplies by
    size / k, so that the mean over rounds is right.
    """

    fraction: float = 0.1
    feedback: bool = True

    def __post_init__(self) -> None:
        _fraction("RandomK", self.fraction)

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "RandomK()")
        if self.feedback:
            steady(wire, "RandomK(feedback=True)")
        size = wire.size - tail(wire)
        k = _count(self.fraction, size)

        def pick(y: Array, about: About | Heard) -> Array:
            return y[:, _chosen(common("random k", about), size, k)]

        def spread(y: Array, about: About | Heard) -> Array:
            whole = np.zeros((len(y), size), y.dtype)
            whole[:, _chosen(common("random k", about), size, k)] = y
            return whole

        after = replace(wire, size=k + tail(wire), shapes=(), l2=None if self.feedback else wire.l2)
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
        raise ValueError(f"{name}(fraction={fraction}): a fraction of the numbers, above 0 and at most 1")


def _count(fraction: float, size: int) -> int:
    return max(1, round(fraction * size))
