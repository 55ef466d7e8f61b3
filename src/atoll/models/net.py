"""A network as data: layers in a row, the loss, and the flat layout of its parameters. No framework lives here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from atoll.core.keys import rng
from atoll.core.tree import Array, Schema
from atoll.models.layers import Conv, Layer, Lstm, Shape, Tensor, start

Loss = Literal["cross_entropy", "logistic", "squared"]


@dataclass(frozen=True)
class Net:
    """Layers in a row for rows of a known shape. Labels equal to `ignore` do not count (padding of sequences)."""

    layers: tuple[Layer, ...]
    shape: Shape
    loss: Loss = "cross_entropy"
    ignore: int | None = None

    @cached_property
    def parameters(self) -> tuple[tuple[str, int, str, Shape], ...]:
        """(leaf, layer number, name in the layer, shape) of every parameter."""
        found, shape = [], self.shape
        for i, layer in enumerate(self.layers):
            shape, needed = layer.shapes(shape)
            kind = type(layer).__name__.lower()
            found += [(f"{i}.{kind}.{name}", i, name, size) for name, size in needed.items()]
        return tuple(found)

    @cached_property
    def schema(self) -> Schema:
        return Schema(tuple((leaf, shape) for leaf, _, _, shape in self.parameters))

    @cached_property
    def positions(self) -> Shape:
        """What gets scores of its own: () for a whole row, (time,) for each position in it."""
        shape = self.shape
        for layer in self.layers:
            shape, _ = layer.shapes(shape)
        return shape[:-1]

    @property
    def heavy(self) -> bool:
        """Whether a step is best compiled on its own (convolutions are slow inside compiled loops on a CPU)."""
        return any(isinstance(layer, Conv) for layer in self.layers)

    @property
    def recurrent(self) -> bool:
        return any(isinstance(layer, Lstm) for layer in self.layers)

    def apply(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """Run rows through the network in JAX."""
        from atoll.models.jax_layers import apply

        return apply(self, parameters, x)

    def init(self, seed: int) -> Array:
        """Draw the first parameters: the same numbers for every backend."""
        parts = [start(self.layers[i], name, s, rng(seed, "init", leaf)) for leaf, i, name, s in self.parameters]
        return np.concatenate([part.ravel() for part in parts])
