"""Send matrices by few of their rows, in a random basis that all parties share.

Products run on one thread: a library of linear algebra adds in another order on several, and then a run in the calling
process would have other last bits than the same run in workers or between real parties, which have one thread each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod, sqrt
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from atoll.core.keys import uniform
from atoll.core.tree import Array
from atoll.core.wire import Codec, DecodeContext, EncodeContext, Mismatch, Stage, Wire
from atoll.stages.encodings import Address, common, compressing, real, steady


class MatrixSlot(NamedTuple):
    """One array of the vector as a matrix, and how many numbers of it travel."""

    number: int
    rows: int
    columns: int
    rank: int  # 0: it travels as it is

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def sent(self) -> int:
        return self.rank * min(self.rows, self.columns) if self.rank else self.size


@dataclass(frozen=True)
class LowRank(Stage):
    """Project every matrix of the model on `rank` random directions, new in each round and the same for all parties.

    This is the method of Konečný et al. 2016 with a common basis: of a matrix with m rows (its longer side) `rank` rows
    are sent. Vectors and small matrices are sent unchanged. The projection is linear, so sums, rings, masks and noise
    work on what is sent.

    Proves: nothing new; without feedback it keeps the norm bound.
    Needs: the arrays of the model, so it comes before stages that flatten them.

    Args:
        rank: rows that are sent of each matrix, 1 or more. Default 4.
        feedback: whether a party adds what was projected away to its next vector. This removes the norm bound. Default
            true.

    Example:
        >>> import atoll
        >>> atoll.LowRank(rank=8, feedback=False)
        LowRank(rank=8, feedback=False)
    """

    rank: int = 4
    feedback: bool = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise Mismatch(f"LowRank(rank={self.rank}): at least one direction")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "LowRank()")
        if sum(map(prod, wire.row.shapes)) != wire.row.size:
            raise Mismatch(
                "LowRank() needs the shapes of the model's arrays, which an earlier stage has dissolved: "
                "put LowRank() before RandomK(), Rotate() and others that change the vector's size"
            )
        if self.feedback:
            steady(wire, "LowRank(feedback=True)")
        shapes = wire.row.shapes[: len(wire.row.shapes) - wire.tail]  # each number of the tail is an array of its own
        leaves = [_leaf(number, shape, self.rank) for number, shape in enumerate(shapes)]
        size = sum(leaf.sent for leaf in leaves)

        def project(y: Array, about: EncodeContext | DecodeContext) -> Array:
            with _one_thread():
                out = [_project(part, leaf, about) for leaf, part in _parts(y, leaves, [leaf.size for leaf in leaves])]
            return np.concatenate(out, axis=1)

        def lift(y: Array, about: EncodeContext | DecodeContext) -> Array:
            with _one_thread():
                out = [_lift(part, leaf, about) for leaf, part in _parts(y, leaves, [leaf.sent for leaf in leaves])]
            return np.concatenate(out, axis=1)

        # What rounding can add to a product of matrices, at worst.
        longest = max((max(leaf.rows, leaf.columns) for leaf in leaves if leaf.rank), default=0)
        slack = 1 + longest * sqrt(self.rank) * float(np.finfo(wire.row.dtype).eps)
        l2 = None if self.feedback or wire.l2 is None else wire.l2 * slack
        after = wire.of_size(size + wire.tail, l2)
        return after, compressing(wire, self.feedback, project, lift)


_turn = threading.RLock()  # the number of threads is one for the whole process


@contextmanager
def _one_thread() -> Iterator[None]:
    with _turn, _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def _leaf(number: int, shape: tuple[int, ...], rank: int) -> MatrixSlot:
    """See an array as the matrix that is nearest to a square, cut between two of its axes."""
    sides = [(prod(shape[:cut]), prod(shape[cut:])) for cut in range(1, len(shape))]
    rows, columns = min(sides, key=max, default=(prod(shape), 1))
    compressed = len(shape) > 1 and rank < max(rows, columns)
    return MatrixSlot(number, rows, columns, rank if compressed else 0)


def _parts(y: Array, leaves: list[MatrixSlot], sizes: list[int]) -> Iterator[tuple[MatrixSlot, Array]]:
    start = 0
    for leaf, size in zip(leaves, sizes, strict=True):
        yield leaf, y[:, start : start + size]
        start += size


def _project(part: Array, leaf: MatrixSlot, about: EncodeContext | DecodeContext) -> Array:
    if not leaf.rank:
        return part
    basis = _basis(common("low rank", about), leaf, part.dtype.name)
    matrix = part.reshape(len(part), leaf.rows, leaf.columns)
    short = basis.T @ matrix if leaf.rows >= leaf.columns else matrix @ basis
    return short.reshape(len(part), -1)


def _lift(part: Array, leaf: MatrixSlot, about: EncodeContext | DecodeContext) -> Array:
    if not leaf.rank:
        return part
    basis = _basis(common("low rank", about), leaf, part.dtype.name)
    if leaf.rows >= leaf.columns:
        whole = basis @ part.reshape(len(part), leaf.rank, leaf.columns)
    else:
        whole = part.reshape(len(part), leaf.rows, leaf.rank) @ basis.T
    return whole.reshape(len(part), -1)


@lru_cache(maxsize=32)
def _basis(address: Address, leaf: MatrixSlot, dtype: str) -> Array:
    """Draw orthonormal columns, uniformly among all."""
    m = max(leaf.rows, leaf.columns)
    u, v = uniform(*address, leaf.number, np.arange(2 * m * leaf.rank)).reshape(2, m, leaf.rank)
    q, r = np.linalg.qr(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v))
    basis = (q * np.where(np.diag(r) < 0, -1, 1)).astype(dtype)  # libraries of linear algebra differ in signs
    basis.setflags(write=False)
    return basis
