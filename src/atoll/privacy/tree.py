"""Tree noise (DP-FTRL, Kairouz et al. 2021): prefix sums whose noise grows with log t. No node is ever stored."""

from __future__ import annotations

from collections.abc import Callable

from atoll.core.errors import Mismatch
from atoll.core.tree import Array

Node = Callable[[int, int], Array]


def _check(t: int) -> None:
    if t < 1:
        raise Mismatch(f"t={t}: the rounds of a tree are counted from 1")


def prefix(t: int, node: Node) -> Array:
    """Return N_t, the noise of the sum of rounds 1 to t: one node for every 1 in the binary form of t.

    Args:
        t: number of rounds, 1 or more.
        node: node(level, i) returns the noise of the rounds i·2^level + 1 to (i+1)·2^level.

    Example:
        >>> from atoll.privacy import prefix
        >>> prefix(6, lambda level, i: 2**level)  # 6 = 4 + 2: two nodes
        6
    """
    _check(t)
    first, *rest = [node(level, (t >> level) - 1) for level in range(t.bit_length()) if t >> level & 1]
    return sum(rest, start=first)


def increments(t: int, node: Node) -> Array:
    """Return N_t − N_{t−1}, what round t of a tree adds to the noise of the prefix sums.

    Round t completes one node and leaves those it is made of, so two nodes are used on average.

    Args:
        t: the round, 1 or more.
        node: as in `prefix`. It must return the same vector whenever it is called: derive it from (tree, level, index).

    Example:
        >>> from atoll.privacy import increments, prefix
        >>> noise = lambda level, i: 10 * level + i
        >>> increments(4, noise) == prefix(4, noise) - prefix(3, noise)
        True
    """
    _check(t)
    top = (t & -t).bit_length() - 1
    change = node(top, (t >> top) - 1)
    for level in range(top):
        change = change - node(level, (t - 1 >> level) - 1)
    return change
