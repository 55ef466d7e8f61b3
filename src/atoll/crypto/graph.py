"""Who shares with whom: the complete graph, or a sparse one on a ring that nobody picks (Bell et al., CCS 2020).

The sparse graph saves work only against a server that follows the protocol while keys are advertised. Against one that
lies, the thresholds it needs leave almost nothing to save up to some 200 parties: the complete graph is the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from math import ceil, floor, perm
from typing import Literal

from gmpy2 import comb

from atoll.crypto.keys import refuse_if

SECURITY, CORRECTNESS = 40, 20  # bits: the odds of a leak, and of a round that fails


@dataclass(frozen=True)
class Sparse:
    """What is assumed of the cohort: the share of colluding parties, of dropouts, and how far the server may stray.

    "semi-malicious": it may lie after the keys are advertised. It still chooses whose adverts arrive, and may try many
    choices: every doubling of its tries costs one of the 40 bits.
    """

    adversarial: float = 0.05
    dropout: float = 0.33
    server: Literal["curious", "semi-malicious"] = "semi-malicious"

    def __post_init__(self) -> None:
        refuse_if(
            self.server not in ("curious", "semi-malicious"), f"server={self.server!r}: curious or semi-malicious"
        )
        refuse_if(not 0 <= self.adversarial < 1, f"adversarial={self.adversarial}: a fraction is at least 0, below 1")
        refuse_if(not 0 <= self.dropout < 1, f"dropout={self.dropout}: a fraction is at least 0, below 1")
        lost = self.adversarial + self.dropout * (1 if self.server == "curious" else 2)
        refuse_if(
            lost > 0.9, f"adversarial={self.adversarial}, dropout={self.dropout}: too few honest parties are left"
        )

    def counts(self, n: int) -> tuple[int, int, int]:
        """Colluding parties at most, dropouts at most, survivors at least; exact in the decimals as written."""
        bad, lost = Fraction(str(self.adversarial)), Fraction(str(self.dropout))
        return floor(bad * n), floor(lost * n), ceil((1 - lost) * n)


def secure_threshold(n: int, k: int, sparse: Sparse) -> int | None:
    """The smallest threshold that is safe with k neighbours, or None: the honest parties may fall apart."""
    bad, lost, _ = sparse.counts(n)
    # To cut the ring, k/2 neighbours in a row must be gone in two places: a union over the pairs of places.
    if n * (n - k - 1) * perm(bad + lost, k) << (SECURITY + 1) >= 2 * perm(n, k):
        return None
    # Half of the odds is left for some party that has too many colluding neighbours.
    colluding, tail = k, 0
    while colluding > 0:
        tail += comb(bad, colluding) * comb(n - bad, k - colluding)
        if tail * n << (SECURITY + 1) > comb(n, k):
            break
        colluding -= 1
    # A curious server must not hold t shares; a lying one must not get t of each kind from k honest answers.
    return max(colluding + 1 if sparse.server == "curious" else (k + colluding) // 2 + 1, 2)


def likely_answers(n: int, k: int, sparse: Sparse) -> int:
    """The largest threshold that every party's surviving neighbours still reach, but for odds of 2^-20."""
    alive = sparse.counts(n)[2]
    tail = 0
    for answers in range(k + 1):
        tail += comb(alive, answers) * comb(n - alive, k - answers)
        if tail * n << CORRECTNESS > comb(n, k):
            return answers
    return k


def parameters(n: int, sparse: Sparse) -> tuple[int, int]:
    """The fewest neighbours that are safe and likely to succeed, and their threshold."""
    for k in range(2, n - 1, 2):
        t = secure_threshold(n, k, sparse)
        if t is not None and t <= likely_answers(n, k, sparse):
            return k, t
    raise ValueError(f"no sparse graph of {n} parties is safe under {sparse}: use the complete graph")


def ring(ids: Iterable[int], seed: bytes) -> list[int]:
    """The parties in an order that only the seed decides."""
    return sorted(ids, key=lambda i: sha256(seed + i.to_bytes(8, "big")).digest())


def around(me: int, circle: Sequence[int], k: int) -> tuple[int, ...]:
    """The k/2 parties on either side of one party on the ring, ascending."""
    refuse_if(k % 2 == 1 or not 0 < k < len(circle), f"k={k} of {len(circle)}: an even number of others")
    n, at = len(circle), circle.index(me)
    return tuple(sorted(circle[(at + step) % n] for step in range(-k // 2, k // 2 + 1) if step))


def complete(ids: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Everybody next to everybody."""
    every = sorted(ids)
    return {i: tuple(j for j in every if j != i) for i in every}


def harary(ids: Iterable[int], k: int, seed: bytes) -> dict[int, tuple[int, ...]]:
    """The k-regular ring graph: no k - 1 parties can cut it apart."""
    circle = ring(ids, seed)
    return {i: around(i, circle, k) for i in sorted(circle)}
