"""Tree noise (DP-FTRL, Kairouz et al. 2021): prefix sums whose noise grows with log t. No node is ever stored."""

from __future__ import annotations

from collections.abc import Callable

from atoll.core.keys import Array

Node = Callable[[int, int], Array]


def _check(t: int) -> None:
    if t < 1:
        raise ValueError(f"t={t}: the rounds of a tree are counted from 1")


def prefix(t: int, node: Node) -> Array:
    """Return N_t, the noise of the sum of rounds 1..t: one node for every 1 in the binary form of t.

    Node (level, i) covers the rounds i·2^level + 1 to (i+1)·2^level.
    """
    _check(t)
    first, *rest = [node(level, (t >> level) - 1) for level in range(t.bit_length()) if t >> level & 1]
    return sum(rest, start=first)


def increments(t: int, node: Node) -> Array:
    """Return N_t − N_{t−1}, what round t of a tree adds to the noise of the prefix sums.

    Round t completes one node and leaves those it is made of, so that two nodes are touched on average. A node must
    be the same vector whenever it is asked for: draw it at an address that holds (tree, level, index).
    """
    _check(t)
    top = (t & -t).bit_length() - 1
    change = node(top, (t >> top) - 1)
    for level in range(top):
        change = change - node(level, (t - 1 >> level) - 1)
    return change
