"""Layers as data: what each needs, what it makes of a shape, how it starts. No framework; backends interpret them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, Literal

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.tree import Array

Shape = tuple[int, ...]
Tensor = Any  # an array of JAX's or a tensor of PyTorch's, or a tree of them where JAX takes one
Parameters = dict[str, Shape]


@dataclass(frozen=True)
class Image:
    """See a flat row as height × width × channels."""

    channels: int = 1

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        side = round(sqrt(prod(shape) / self.channels))
        if side * side * self.channels != prod(shape):
            raise Mismatch(f"{prod(shape)} features are no square image of {self.channels} channel(s): use mlp")
        return (side, side, self.channels), {}


@dataclass(frozen=True)
class Dense:
    """An affine map."""

    units: int
    zero: bool = False  # start from zero, as convex models do

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        return (*shape[:-1], self.units), {"w": (shape[-1], self.units), "b": (self.units,)}


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        return shape, {}


@dataclass(frozen=True)
class Conv:
    """A square convolution of stride 1, stored height × width × in × out."""

    channels: int
    kernel: int = 5
    padding: Literal["same", "valid"] = "same"

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        h, w, c = shape
        lost = 0 if self.padding == "same" else self.kernel - 1
        if min(h, w) <= lost:
            raise Mismatch(f"a {h}×{w} image is too small for a {self.kernel}×{self.kernel} convolution: use mlp")
        weights = {"w": (self.kernel, self.kernel, c, self.channels), "b": (self.channels,)}
        return (h - lost, w - lost, self.channels), weights


@dataclass(frozen=True)
class Pool:
    """The maximum of every 2 × 2 square; an odd last row or column is left out."""

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        h, w, c = shape
        return (h // 2, w // 2, c), {}


@dataclass(frozen=True)
class Flatten:
    """See everything but the batch as one row."""

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        return (prod(shape),), {}


@dataclass(frozen=True)
class Embed:
    """A learned vector for every symbol."""

    symbols: int
    units: int = 8

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        return (*shape, self.units), {"w": (self.symbols, self.units)}


@dataclass(frozen=True)
class Lstm:
    """A long short-term memory over time; gates stand in the order input, forget, candidate, output.

    With peepholes the input and forget gates also see the old cell and the output gate the new one, each through a
    diagonal weight: what McMahan's 866,578 parameters contain.
    """

    units: int = 256
    peephole: bool = False

    def shapes(self, shape: Shape) -> tuple[Shape, Parameters]:
        time, features = shape
        gates = 4 * self.units
        weights: Parameters = {"wi": (features, gates), "wh": (self.units, gates), "b": (gates,)}
        if self.peephole:
            weights["peep"] = (3, self.units)
        return (time, self.units), weights


Layer = Image | Dense | Relu | Conv | Pool | Flatten | Embed | Lstm


def start(layer: Layer, name: str, shape: Shape, generator: np.random.Generator) -> Array:
    """Draw the first value of one parameter: Glorot's uniform for weights, zero for biases and convex models."""
    if name == "b":
        bias = np.zeros(shape, np.float32)
        if isinstance(layer, Lstm):
            bias[layer.units : 2 * layer.units] = 1.0  # an open forget gate
        return bias
    if isinstance(layer, Dense) and layer.zero:
        return np.zeros(shape, np.float32)
    if isinstance(layer, Lstm):
        bound = 1 / sqrt(layer.units)
    elif isinstance(layer, Embed):
        bound = 0.05
    else:
        bound = sqrt(6 / (prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]))
    return generator.uniform(-bound, bound, shape).astype(np.float32)
