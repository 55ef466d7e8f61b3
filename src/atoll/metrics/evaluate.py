"""Several metrics at once: their sums by party under one set of names, and the values of the added sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.tree import Array
from atoll.metrics.classes import Accuracy
from atoll.metrics.metric import Metric
from atoll.metrics.real import MSE, R2
from atoll.metrics.rows import flat, total


def default_metrics(kind: str) -> tuple[Metric, ...]:
    """Return what is measured if a job says nothing else.

    Args:
        kind: what the targets are: "classes" (accuracy) or "real" (mean squared error and R²).

    Example:
        >>> from atoll.metrics import default_metrics
        >>> default_metrics("real")
        (MSE(), R2())
    """
    if kind not in ("classes", "real"):
        raise Mismatch(f"default_metrics('{kind}'): targets are 'classes' or 'real'")
    return (Accuracy(),) if kind == "classes" else (MSE(), R2())


def layouts(metrics: Sequence[Metric], outputs: int) -> dict[str, tuple[int, ...]]:
    """Return the name of each sum, as in `totals`, and its shape for one party.

    Args:
        metrics: the metrics, each with its own name.
        outputs: scores that the network gives for a sample, 1 or more.

    Example:
        >>> from atoll.metrics import Accuracy, layouts
        >>> layouts([Accuracy()], outputs=10)
        {'n': (), 'accuracy/correct': (), 'accuracy/n': ()}
    """
    named = {f"{m.name}/{name}": tuple(shape) for m in _unique(metrics) for name, shape in m.layout(outputs).items()}
    return {"n": (), **named}


def totals(
    metrics: Sequence[Metric], scores: Array, y: Array, party: Array, parties: int, ignore: int | None = None
) -> dict[str, Array]:
    """Return the sums of all metrics by party, "<metric>/<sum>" -> (parties, …), and "n", how many samples count.

    Args:
        metrics: the metrics, each with its own name.
        scores: scores of each row: (rows,), (rows, outputs) or (rows, length, outputs).
        y: the targets, one for each row or position, or one for each output if they are real.
        party: the index of the party of each row, from 0 to parties - 1.
        parties: number of parties.
        ignore: positions of a sequence with this label do not count (padding). Default: all count.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import Accuracy, totals
        >>> scores, y, party = np.eye(3), np.array([0, 1, 0]), np.array([0, 0, 1])
        >>> totals([Accuracy()], scores, y, party, parties=2)["accuracy/correct"].tolist()
        [2.0, 0.0]
    """
    sequences = np.ndim(y) > 1
    scores, y, party = flat(scores, y, party, parties)
    if ignore is not None and sequences:
        real = y != ignore
        scores, y, party = scores[real], y[real], party[real]
    found = {"n": total(party, parties)}
    for m in _unique(metrics):
        shapes, sums = m.layout(scores.shape[1]), m.sums(scores, y, party, parties)
        if sorted(shapes) != sorted(sums):
            raise Mismatch(f"metric '{m.name}' has the sums {sorted(sums)}, its layout says {sorted(shapes)}")
        for name, shape in shapes.items():
            leaf = np.asarray(sums[name], np.float64)
            if leaf.shape != (parties, *shape):
                raise Mismatch(
                    f"metric '{m.name}': the sum '{name}' has shape {leaf.shape}, "
                    f"its layout says {(parties, *shape)} for {parties} parties"
                )
            found[f"{m.name}/{name}"] = leaf
    return found


def values(metrics: Sequence[Metric], sums: Mapping[str, Array]) -> dict[str, float]:
    """Return the values of all metrics.

    Args:
        metrics: the metrics whose sums these are.
        sums: what `totals` returned, added over parties: without the axis of parties.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import Accuracy, values
        >>> values([Accuracy()], {"n": np.array(4.0), "accuracy/correct": np.array(3.0), "accuracy/n": np.array(4.0)})
        {'accuracy': 0.75}
    """
    return {name: float(value) for m in _unique(metrics) for name, value in m.values(_own(m, sums)).items()}


def party_values(metrics: Sequence[Metric], sums: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values of all metrics for each party, (parties,). Leave out parties whose "n" is 0 yourself.

    Args:
        metrics: the metrics whose sums these are.
        sums: what `totals` returned, with the axis of parties.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import Accuracy, party_values, totals
        >>> sums = totals([Accuracy()], np.eye(3), np.array([0, 1, 0]), np.array([0, 0, 1]), parties=2)
        >>> party_values([Accuracy()], sums)["accuracy"].tolist()
        [1.0, 0.0]
    """
    found = {}
    for m in _unique(metrics):
        for name, value in m.values(_own(m, sums)).items():
            found[name] = np.asarray(value, np.float64)
            if found[name].shape != sums["n"].shape:
                raise Mismatch(
                    f"metric '{m.name}': '{name}' has shape {found[name].shape} for {len(sums['n'])} parties: "
                    "compute values over the last axes of the sums"
                )
    return found


def better(metrics: Sequence[Metric], outputs: int = 1) -> dict[str, Literal["high", "low"]]:
    """Return the name of each value and which of its values are better, "high" or "low".

    Args:
        metrics: the metrics, each with its own name.
        outputs: scores that the network gives for a sample: a metric can have a value for each class. Default 1, a
            logistic model of two classes.

    Example:
        >>> from atoll.metrics import MSE, Accuracy, better
        >>> better([MSE()]), better([Accuracy()])
        ({'mse': 'low'}, {'accuracy': 'high'})
    """
    return {name: "low" if m.better == "low" else "high" for m in _unique(metrics) for name in _names(m, outputs)}


def _own(m: Metric, sums: Mapping[str, Array]) -> dict[str, Array]:
    own = f"{m.name}/"
    return {name.removeprefix(own): np.asarray(leaf) for name, leaf in sums.items() if name.startswith(own)}


def _names(m: Metric, outputs: int) -> Iterator[str]:
    return iter(m.values({name: np.zeros(shape) for name, shape in m.layout(outputs).items()}))


def _unique(metrics: Sequence[Metric]) -> Sequence[Metric]:
    names = [m.name for m in metrics]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise Mismatch(f"two metrics are called '{twice[0]}': keep one of them")
    return metrics
