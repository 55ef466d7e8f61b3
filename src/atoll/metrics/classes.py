"""Metrics of classifiers that need the label, the prediction and its probability, and no order among rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.given import number
from atoll.core.tree import Array
from atoll.metrics.rows import classes, labelled, macro, ratio, share, total

# A label's probability counts as at least this, as in scikit-learn: one row adds at most 36.04 to a log loss.
LEAST = float(np.finfo(np.float64).eps)
WORST = float(-np.log(LEAST))


@dataclass(frozen=True)
class Accuracy:
    """Fraction of labels that the largest score predicts; equal scores predict the first class. 0.0 without rows.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import Accuracy, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([Accuracy()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([Accuracy()], sums)["accuracy"], 3)
        0.667
    """

    better: ClassVar[str] = "high"
    kind: ClassVar[str] = "classes"
    name: ClassVar[str] = "accuracy"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return {"correct": (), "n": ()}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        scores, y, party = labelled(scores, y, party, parties)
        return {"correct": total(party, parties, scores.argmax(1) == y), "n": total(party, parties)}

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        return {self.name: share(sums["correct"], sums["n"])}


@dataclass(frozen=True)
class TopKAccuracy:
    """Fraction of labels among the k largest scores; equal scores rank by class number. 0.0 without rows.

    With k = 1 it is the accuracy. A model of k classes or fewer is refused: the value would always be 1.

    Args:
        k: how many of the largest scores count, 1 or more. Default 5. The value is called "top_<k>".

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import TopKAccuracy, totals, values
        >>> scores, y = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), np.array([1, 2])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([TopKAccuracy(2)], scores, y, np.zeros(2, int), 1).items()}
        >>> values([TopKAccuracy(2)], sums)
        {'top_2': 0.5}
    """

    k: int = 5
    better: ClassVar[str] = "high"
    kind: ClassVar[str] = "classes"

    def __post_init__(self) -> None:
        number("TopKAccuracy: k", self.k)

    @property
    def name(self) -> str:
        return f"top_{self.k}"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        if self.k >= classes(outputs):
            raise Mismatch(
                f"TopKAccuracy(k={self.k}) is 1 for every model of {classes(outputs)} classes: use a smaller k"
            )
        return {"correct": (), "n": ()}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        scores, y, party = labelled(scores, y, party, parties)
        self.layout(scores.shape[1])
        scores = np.where(np.isnan(scores), np.inf, scores)  # as argmax ranks what is not a number
        own = scores[np.arange(len(y)), y][:, None]
        first = np.arange(scores.shape[1]) < y[:, None]
        rank = ((scores > own) | ((scores == own) & first)).sum(1)
        return {"correct": total(party, parties, rank < self.k), "n": total(party, parties)}

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        return {self.name: share(sums["correct"], sums["n"])}


@dataclass(frozen=True)
class BalancedAccuracy:
    """Mean over classes of the fraction of the class that is predicted; classes without samples do not count.

    It is 0.0 without rows.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import BalancedAccuracy, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([BalancedAccuracy()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([BalancedAccuracy()], sums)["balanced_accuracy"], 3)
        0.75
    """

    better: ClassVar[str] = "high"
    kind: ClassVar[str] = "classes"
    name: ClassVar[str] = "balanced_accuracy"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return _by_label(outputs, *_RECALLED)

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        return _counts(scores, y, party, parties, *_RECALLED)

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        return {self.name: macro(share(sums["correct"], sums["support"]), np.asarray(sums["support"]) > 0)}


@dataclass(frozen=True)
class Recall:
    """Fraction of each class that is predicted, "recall.<class>", and their mean, "recall".

    A class without samples has 0.0 and does not count in the mean, which therefore equals the balanced accuracy.
    Without rows all are 0.0.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import Recall, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([Recall()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([Recall()], sums)["recall.1"], 3)
        0.5
    """

    better: ClassVar[str] = "high"
    kind: ClassVar[str] = "classes"
    name: ClassVar[str] = "recall"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return _by_label(outputs, *_RECALLED)

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        return _counts(scores, y, party, parties, *_RECALLED)

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        each = share(sums["correct"], sums["support"])
        return {self.name: macro(each, np.asarray(sums["support"]) > 0), **_by_class(self.name, each)}


@dataclass(frozen=True)
class F1:
    """Harmonic mean of precision and recall of each class, "f1.<class>", and their mean, "f1" (macro).

    Of two classes, "f1.1" is that of the positive class. A class that is neither a label nor predicted has 0.0 and does
    not count in the mean; without rows all are 0.0.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import F1, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([F1()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([F1()], sums)["f1"], 3)
        0.667
    """

    better: ClassVar[str] = "high"
    kind: ClassVar[str] = "classes"
    name: ClassVar[str] = "f1"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return _by_label(outputs, *_RECALLED, "predicted")

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        return _counts(scores, y, party, parties, *_RECALLED, "predicted")

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        either = np.asarray(sums["support"]) + sums["predicted"]
        each = share(2.0 * np.asarray(sums["correct"]), either)
        return {self.name: macro(each, either > 0), **_by_class(self.name, each)}


@dataclass(frozen=True)
class LogLoss:
    """Mean of -log(probability of the label), in nats: the cross entropy. 0.0 without rows.

    Probabilities are the softmax of the scores, or the logistic of a single score. A label's probability counts as at
    least 2.2e-16, so that one row adds at most 36.04; a row with a score that is not a number adds that.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import LogLoss, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([LogLoss()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([LogLoss()], sums)["log_loss"], 3)
        0.558
    """

    better: ClassVar[str] = "low"
    kind: ClassVar[str] = "classes"
    name: ClassVar[str] = "log_loss"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return {"loss": (), "n": ()}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        return _losses(scores, y, party, parties)

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        return {self.name: _mean_loss(sums)}


@dataclass(frozen=True)
class Perplexity:
    """exp(log loss): the number of equally likely labels that would give the same log loss. 1.0 without rows.

    Probabilities are limited as in LogLoss, so that the value is at most 4.5e15.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import Perplexity, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([Perplexity()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([Perplexity()], sums)["perplexity"], 3)
        1.748
    """

    better: ClassVar[str] = "low"
    kind: ClassVar[str] = "classes"
    name: ClassVar[str] = "perplexity"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return {"loss": (), "n": ()}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        return _losses(scores, y, party, parties)

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        return {self.name: np.exp(_mean_loss(sums))}


_RECALLED = ("correct", "support")  # counts of which recall is a share


def _by_label(outputs: int, *names: str) -> Mapping[str, tuple[int, ...]]:
    return dict.fromkeys(names, (classes(outputs),))


def _counts(scores: Array, y: Array, party: Array, parties: int, *names: str) -> Mapping[str, Array]:
    """Count rows by party and class: correct ones by label, all by label (support), all by prediction."""
    scores, y, party = labelled(scores, y, party, parties)
    many = scores.shape[1]
    said, at = scores.argmax(1), party * many
    rows = {"correct": (at + y)[said == y], "support": at + y, "predicted": at + said}
    return {name: total(rows[name], parties * many).reshape(parties, many) for name in names}


def _by_class(name: str, each: Array) -> dict[str, Array]:
    return {f"{name}.{c}": each[..., c][()] for c in range(each.shape[-1])}


def _losses(scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
    scores, y, party = labelled(scores, y, party, parties)
    logits = np.clip(scores.astype(np.float64), -1e30, 1e30)  # infinite ones would give inf - inf
    logits -= logits.max(1, keepdims=True)
    likelihood = logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(1))
    loss = -np.fmax(likelihood, -WORST)  # fmax: what is not a number counts as the worst
    return {"loss": total(party, parties, loss), "n": total(party, parties)}


def _mean_loss(sums: Mapping[str, Array]) -> Array:
    return np.clip(ratio(sums["loss"], sums["n"]), 0.0, WORST)
