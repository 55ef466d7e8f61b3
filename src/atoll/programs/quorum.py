"""Who must answer before a round counts. No clock and no socket is here: a runtime decides how long it waits."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Quorum(NamedTuple):
    """A round counts with at least so many answers, those of the required parties (by number) among them."""

    min_parties: int = 1
    required: frozenset[int] = frozenset()

    def met(self, answered: Collection[int]) -> bool:
        return len(answered) >= self.min_parties and self.required <= set(answered)
