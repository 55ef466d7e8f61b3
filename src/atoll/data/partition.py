"""Ways to deal samples out to clients: pure functions from labels to an order and offsets. No sample is read here.

Every function gives (order, offsets): client k holds the rows order[offsets[k]:offsets[k+1]], and each row is in
exactly one client. Only `natural` may leave rows out: those of the keys that were not chosen.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from atoll.core.tree import Array
from atoll.data.errors import BadData, accept, number, unknown, whole

Parts = tuple[Array, Array]
Generator = np.random.Generator


def equal(n: int, parts: int) -> Array:
    """Return the offsets that cut n into parts whose sizes differ by at most one."""
    return np.arange(parts + 1, dtype=np.int64) * n // parts


def iid(labels: Array, clients: int, rng: Generator, /) -> Parts:
    """Equal shares of a shuffle."""
    return rng.permutation(len(labels)), equal(len(labels), clients)


def shards(labels: Array, clients: int, rng: Generator, /, *, per_client: int = 2) -> Parts:
    """Sort by label, cut into clients × per_client shards, deal per_client to each (McMahan et al. 2017, section 3)."""
    _one_label(labels, "shards")
    n, count = len(labels), clients * whole("per_client", per_client, 1)
    if count > n:
        raise BadData(f"{n} samples cannot be cut into {count} shards: ask for fewer clients or a smaller per_client")
    deal = rng.permutation(count)
    # Sizes belong to the dealt slots, not to the shards, so that clients stay equal where n is no multiple.
    sizes = np.empty(count, np.int64)
    sizes[deal] = np.diff(equal(n, count))
    ends = np.cumsum(sizes)
    by_label = np.argsort(labels, kind="stable")
    order = np.concatenate([by_label[ends[s] - sizes[s] : ends[s]] for s in deal])
    return order, equal(n, count)[::per_client]


def dirichlet(labels: Array, clients: int, rng: Generator, /, *, alpha: float = 0.5, min_samples: int = 1) -> Parts:
    """Share each class out by proportions drawn from Dir(alpha): small alpha, few classes a client.

    A client left with fewer than `min_samples` samples takes them, one by one, from whoever is largest at that moment.
    """
    _class_labels(labels, "dirichlet")
    number("alpha", alpha, least=1e-6)  # below this a draw is 0 for everyone
    _check_enough(len(labels), clients, whole("min_samples", min_samples, 0))
    shuffled, kinds = rng.permutation(len(labels)), np.unique(labels)
    counts = np.zeros((clients, len(kinds)), np.int64)
    for column, kind in enumerate(kinds):
        shares = np.cumsum(rng.dirichlet(np.full(clients, alpha)))
        cuts = np.floor(np.minimum(shares, 1.0) * np.count_nonzero(labels == kind)).astype(np.int64)
        cuts[-1] = np.count_nonzero(labels == kind)  # rounding of the last sum must not lose a sample
        counts[:, column] = np.diff(cuts, prepend=0)
    _relieve(counts, min_samples)
    owner = np.empty(len(labels), np.int64)
    for column, kind in enumerate(kinds):
        owner[shuffled[labels[shuffled] == kind]] = np.repeat(np.arange(clients), counts[:, column])
    return _grouped(owner, clients)


def _relieve(counts: Array, min_samples: int) -> None:
    """Move samples in place from the largest clients to those below `min_samples`, commonest class first."""
    sizes = counts.sum(axis=1)
    heap = [(-int(size), k) for k, size in enumerate(sizes)]
    heapq.heapify(heap)
    for poor in np.flatnonzero(sizes < min_samples):
        while sizes[poor] < min_samples:
            rich = heap[0][1]
            kind = int(np.argmax(counts[rich]))
            counts[rich, kind] -= 1
            counts[poor, kind] += 1
            sizes[rich] -= 1
            sizes[poor] += 1
            heapq.heapreplace(heap, (-int(sizes[rich]), rich))


def power(labels: Array, clients: int, rng: Generator, /, *, exponent: float = 1.0, min_samples: int = 1) -> Parts:
    """Same mix of labels everywhere, sizes by rank r as r^-exponent on top of `min_samples`."""
    n = len(labels)
    number("exponent", exponent)
    _check_enough(n, clients, whole("min_samples", min_samples, 0))
    weights = np.arange(1, clients + 1, dtype=float) ** -exponent
    wanted = weights / weights.sum() * (n - clients * min_samples)
    sizes = np.floor(wanted).astype(np.int64)
    left = n - clients * min_samples - int(sizes.sum())
    sizes[np.argsort(sizes - wanted, kind="stable")[:left]] += 1
    sizes = rng.permutation(sizes + min_samples)  # the first client need not be the largest
    return rng.permutation(n), np.concatenate([[0], np.cumsum(sizes)])


def classes(labels: Array, clients: int, rng: Generator, /, *, per_client: int = 1) -> Parts:
    """Give each client only per_client classes; a class is divided equally among those that hold it."""
    _class_labels(labels, "classes")
    kinds = np.unique(labels)
    if whole("per_client", per_client, 1) > len(kinds):
        raise BadData(f"per_client = {per_client} but there are {len(kinds)} classes: ask for at most that many")
    if clients * per_client < len(kinds):
        raise BadData(
            f"{clients} clients with {per_client} of {len(kinds)} classes each leave a class to nobody:"
            " raise clients or per_client"
        )
    held = np.zeros(len(kinds), np.int64)
    holders: list[list[int]] = [[] for _ in kinds]
    for k in range(clients):
        # The least held classes first, ties by lot: holders of any two classes differ by at most one.
        for kind in np.lexsort((rng.random(len(kinds)), held))[:per_client]:
            holders[kind].append(k)
            held[kind] += 1
    owner = np.empty(len(labels), np.int64)
    for kind, who in zip(kinds, holders, strict=True):
        rows = rng.permutation(np.flatnonzero(labels == kind))
        if len(rows) < len(who):
            raise BadData(f"class {kind} has {len(rows)} samples for {len(who)} clients: ask for fewer clients")
        owner[rows] = np.repeat(who, np.diff(equal(len(rows), len(who))))
    return _grouped(owner, clients)


SCHEMES: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "shards": shards,
    "dirichlet": dirichlet,
    "power": power,
    "classes": classes,
}


def partition(by: str, labels: Array, clients: int, rng: Generator, **options: object) -> Parts:
    """Deal samples out by a named scheme."""
    if by not in SCHEMES:
        raise unknown("partition", by, SCHEMES)
    accept(by, SCHEMES[by], options)
    _check_enough(len(labels), clients, 1)
    return SCHEMES[by](labels, clients, rng, **options)


def natural(keys: Array, clients: int | None, rng: Generator) -> tuple[Array, Array, Array]:
    """One client for each key, or for so many keys drawn by lot: (order, offsets, the keys chosen, sorted)."""
    names, owner = np.unique(keys, return_inverse=True)
    chosen = np.arange(len(names))
    if clients is not None:
        whole("clients of a split by key", clients, 1, len(names))
        chosen = np.sort(rng.choice(len(names), clients, replace=False))
    rank = np.full(len(names), -1)
    rank[chosen] = np.arange(len(chosen))
    kept = np.flatnonzero(rank[owner] >= 0)
    order, offsets = _grouped(rank[owner[kept]], len(chosen))
    return kept[order], offsets, names[chosen]


def _grouped(owner: Array, clients: int) -> Parts:
    sizes = np.bincount(owner, minlength=clients)
    return np.argsort(owner, kind="stable"), np.concatenate([[0], np.cumsum(sizes)])


def _check_enough(n: int, clients: int, min_samples: int) -> None:
    if whole("clients", clients, 1) * min_samples > n:
        need = "" if min_samples == 1 else f" with at least {min_samples} each"
        raise BadData(
            f"{n} samples are too few for {clients} clients{need}: ask for at most {n // min_samples} clients"
        )


def _one_label(labels: Array, by: str) -> None:
    if labels.ndim != 1:
        raise BadData(f"{by} needs one label a sample, these have {labels.shape[1:]}: split by a key, iid or power")


def _class_labels(labels: Array, by: str) -> None:
    _one_label(labels, by)
    if labels.dtype.kind not in "iu":
        raise BadData(f"{by} deals classes out and these labels are real numbers: split by shards, iid or power")
