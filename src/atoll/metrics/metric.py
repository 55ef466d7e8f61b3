"""What a metric is: sums over the samples of each party, and values of the sums of all parties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from atoll.core.tree import Array


class Metric(Protocol):
    """How well a model does, as sums over samples and a value of those sums.

    Only sums leave a party, so a metric works under plain, hidden and noised sums alike. A metric of your own is a
    frozen dataclass with these names; `name`, `better` and `kind` may be constants of the class:

    >>> import numpy as np
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Within:
    ...     margin: float = 1.0
    ...     name, better, kind = "within", "high", "real"
    ...     def layout(self, outputs):
    ...         return {"near": (), "n": ()}
    ...     def sums(self, scores, y, party, parties):
    ...         near = np.abs(scores.reshape(y.shape) - y) <= self.margin
    ...         return {"near": np.bincount(party, near, parties), "n": np.bincount(party, None, parties)}
    ...     def values(self, sums):
    ...         return {"within": sums["near"] / np.maximum(sums["n"], 1)}
    >>> from atoll.metrics import totals, values
    >>> per_party = totals([Within()], np.array([1.0, 2.0, 9.0]), np.array([1.5, 2.0, 3.0]), np.array([0, 0, 1]), 2)
    >>> {name: value.tolist() for name, value in per_party.items()}
    {'n': [2.0, 1.0], 'within/near': [2.0, 0.0], 'within/n': [2.0, 1.0]}
    >>> round(values([Within()], {name: value.sum(axis=0) for name, value in per_party.items()})["within"], 3)
    0.667

    Attributes:
        better: "high" if larger values are better, "low" if smaller ones are. It holds for all values of the metric.
        kind: Which targets it is for: "classes" (integer labels), "real" (numbers) or "any".
    """

    better: ClassVar[str]
    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """Name of the main value, such as "auc" or "top_3". Each other value is called "<name>.<rest>"."""
        ...

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        """Return the name of each sum and its shape for one party.

        Args:
            outputs: How many scores the network gives a sample. One score is a logistic model of two classes.
        """
        ...

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        """Return the sums of each party, (parties, *shape) in float64. A party without rows has zeros.

        Args:
            scores: What the network says of each row: logits for classes, predictions for real targets. The last axis
                holds the outputs, (rows, outputs) or (rows, length, outputs); (rows,) is one output.
            y: The targets, one for each row or position: class numbers from 0, or real numbers.
            party: The index of the party of each row, from 0 to parties - 1.
            parties: How many parties there are.
        """
        ...

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, float | Array]:
        """Return the name and value of what the sums say. Values are finite, also of zeros and of noised sums.

        Args:
            sums: The sums in the shapes of the layout: added over parties, or those of one party. To get the values of
                many parties at once they may have axes in front, which the values then have too: compute with numpy and
                over the last axes.
        """
        ...
