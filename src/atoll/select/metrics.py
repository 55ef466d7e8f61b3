"""What a selection gives away over many rounds, and what it costs: privacy T, cardinality C, fairness gap F."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from typing import NamedTuple

import numpy as np

from atoll.core.effects import Cohort, Replies
from atoll.core.errors import Mismatch
from atoll.core.method import History, Pick, Population, Select
from atoll.core.tree import Array
from atoll.core.world import World
from atoll.select.available import Always, Availability, latency, lost
from atoll.select.batches import family_size


class Isolated(NamedTuple):
    """The fewest parties whose plain sum the server can work out: at least, and at most. Equal: it is known."""

    least: int
    most: int


@dataclass(frozen=True, eq=False)
class MultiRound:
    """What a played selection showed; row t of the matrix says who was in the sum of round t."""

    privacy: int
    isolated: Isolated | None
    cardinality: float
    fairness_gap: float
    matrix: Array = field(repr=False)


def multi_round(
    select: Select,
    parties: int,
    rounds: int,
    availability: Availability | None = None,
    seed: int = 0,
    sizes: Array | None = None,
) -> MultiRound:
    """Play any selection against an availability, without training, and measure it."""
    if rounds < 1:
        raise Mismatch(f"rounds={rounds}: play at least one round")
    there_is = availability or Always()
    matrix = np.zeros((rounds, parties), np.uint8)
    sizes = np.ones(parties, np.int64) if sizes is None else sizes
    memory, whole = select.start(Population(sizes)), select.sampling(parties).whole
    for t in range(rounds):
        pick = select.pick(t, Population(sizes, there_is.online(t, parties, seed)), History(t), memory, World(seed))
        there = _answering(pick, there_is.drop, t, seed)
        if len(there) == len(pick.cohort) or not whole:
            matrix[t, there] = 1
        memory = select.learn(memory, pick, Replies(there))
    often = matrix.sum(axis=0, dtype=np.int64)
    gap = float(often.max() - often.min()) / rounds
    return MultiRound(privacy(matrix), isolated(matrix), float(often.sum()) / rounds, gap, matrix)


def _answering(pick: Pick, drop: float, t: int, seed: int) -> Cohort:
    """Tell whose vectors are in the sum: who is not lost and, where some are enough, the fastest of them."""
    there = pick.cohort[~lost(pick.cohort, drop, t, seed)] if drop and len(pick.cohort) else pick.cohort
    if pick.goal is None or len(there) <= pick.goal:
        return there
    return there[np.argsort(latency(there, t, seed), kind="stable")[: pick.goal]]


def privacy(matrix: Array) -> int:
    """Return the multi-round privacy T of a participation matrix, exactly.

    T is the largest number such that in every combination of rows each coefficient but zero belongs to T parties or
    more. Parties with equal columns have equal coefficients in every combination, and almost every combination gives
    unequal columns unequal coefficients: T is the size of the smallest class of equal columns, leaving out those who
    never took part. A server that saw nothing can tell nobody from anybody: T is then the number of parties.
    """
    _, sizes = _classes(matrix)
    return int(sizes.min()) if len(sizes) else np.shape(matrix)[1]


def isolated(matrix: Array) -> Isolated | None:
    """Bound the fewest parties whose plain sum is a combination of rows; None if the server saw nothing.

    Such a set is one class of equal columns, or several. One class can be isolated if and only if its indicator lies
    in the row space, which is tested for every class (in double precision). Of several, at least two classes are in
    the set; at most it is as small as the smallest row. So the bounds meet when the smallest class can be isolated:
    always where the rank is the number of classes, as it soon is for random cohorts, batches and groups.
    """
    columns, sizes = _classes(matrix)
    if not len(sizes):
        return None
    _, scale, axes = np.linalg.svd(columns.astype(np.float64), full_matrices=False)
    axes = axes[scale > scale[0] * max(columns.shape) * np.finfo(np.float64).eps]
    # The squared length of a unit vector's projection on the row space: one where it lies in it.
    alone = sizes[(axes**2).sum(axis=0) > 1 - 1e-9]
    rows = np.asarray(matrix).sum(axis=1, dtype=np.int64)
    smallest = [int(alone.min())] if len(alone) else []
    pair = [int(np.sort(sizes)[:2].sum())] if len(sizes) > 1 else []
    return Isolated(min(smallest + pair), min([*smallest, int(rows[rows > 0].min())]))


def _classes(matrix: Array) -> tuple[Array, Array]:
    """Return the different columns that are not zero, and how many parties share each."""
    zero_one = np.asarray(matrix)
    if zero_one.ndim != 2 or not ((zero_one == 0) | (zero_one == 1)).all():
        raise Mismatch("a participation matrix has a row for each round, a column for each party, and is 0 or 1")
    columns, sizes = np.unique(zero_one.astype(np.uint8), axis=1, return_counts=True)
    some = columns.any(axis=0)
    return columns[:, some], sizes[some]


def theory(parties: int, number: int, size: int, dropout: float) -> float:
    """Return the cardinality C of batches when each party is away with this probability, independently.

    A round takes place if number/size batches or more are whole, and a batch is whole with (1 − dropout)^size.
    """
    if not 0 <= dropout <= 1:
        raise Mismatch(f"dropout={dropout}: a probability is from 0 to 1")
    family_size(parties, number, size)  # refuses what cannot be cut
    batches, whole = parties // size, (1 - dropout) ** size
    enough = range(number // size, batches + 1)
    return number * sum(comb(batches, i) * whole**i * (1 - whole) ** (batches - i) for i in enough)
