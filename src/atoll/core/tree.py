"""Small named trees of arrays and the one flat vector they become on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tree = Mapping[str, Any]  # leaves are arrays or numbers; branches are trees
EMPTY: Mapping[str, Any] = {}  # for defaults that travel between processes; nobody writes to it


@dataclass(frozen=True)
class Schema:
    """Names and shapes of a tree's leaves, in the order in which they stand in the flat vector.

    Args:
        leaves: (path, shape) of each leaf.
    """

    leaves: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        return sum(prod(shape) for _, shape in self.leaves)

    @property
    def digest(self) -> bytes:
        """Hash names and shapes."""
        return sha256(json.dumps(self.leaves).encode()).digest()

    def slots(self) -> Iterator[tuple[str, int, int, tuple[int, ...]]]:
        """Yield (name, start, stop, shape) of every leaf in the flat vector."""
        start = 0
        for name, shape in self.leaves:
            yield name, start, start + prod(shape), shape
            start += prod(shape)


def length(vector: Array) -> float:
    """Return the L2 norm. Not by BLAS: its threads would spin on for milliseconds where parties want to train.

    Args:
        vector: an array of any shape.
    """
    return float(np.sqrt(np.einsum("d,d->", np.ravel(vector), np.ravel(vector), dtype=np.float64)))


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf), in sorted order of names.

    Args:
        tree: the tree.
        prefix: what every path starts with. Default: nothing.
    """
    for name in sorted(tree):
        value = tree[name]
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `leaves`: build the tree from its paths.

    Args:
        flat: the leaves by their paths.
    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *branches, name = path.split("/")
        at = tree
        for branch in branches:
            at = at.setdefault(branch, {})
        at[name] = value
    return tree


def flatten(tree: Tree, schema: Schema) -> Array:
    """Lay a tree whose leaves have a leading axis of parties side by side: (parties, size).

    Args:
        tree: the tree, with the leaves that the schema names.
        schema: names, shapes and order of the leaves.
    """
    found = dict(leaves(tree))
    names = [name for name, _ in schema.leaves]
    if sorted(found) != sorted(names):
        raise ValueError(f"the contribution has leaves {sorted(found)}, its schema says {sorted(names)}")
    rows = [np.asarray(found[name]).reshape(len(found[name]), -1) for name in names]
    return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)


def unflatten(vector: Array, schema: Schema) -> dict[str, Any]:
    """Cut one flat vector (or rows of them) back into its tree.

    Args:
        vector: the vector, or rows of vectors.
        schema: names, shapes and order of the leaves.
    """
    lead = vector.shape[:-1]
    return nest({name: vector[..., a:b].reshape(*lead, *shape) for name, a, b, shape in schema.slots()})
