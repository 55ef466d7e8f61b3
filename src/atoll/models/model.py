"""A model: a network, its loss, a backend. It offers fit, grad, scores and evaluate on one flat parameter vector.

`fit` minimises the tilted local objective f(w) + ⟨linear, w⟩ + prox/2·‖w − w₀‖², from which the methods are made; so no
method mentions a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from atoll.core.party import Group
from atoll.core.tree import Array, Schema
from atoll.models.layers import Shape
from atoll.models.optimiser import Optimiser
from atoll.models.private import ExampleDP


@dataclass(frozen=True)
class Fit:
    """How a party trains: epochs, batch size (None: all samples at once), optimiser, pull towards the start, privacy.

    With `private` batches are Poisson samples, and an example's loss is the mean over its own labels. Tilt and pull are
    added after the noise: they must not depend on data that is to be hidden.
    """

    epochs: int = 1
    batch: int | None = None
    optimiser: Optimiser = Optimiser()
    prox: float = 0.0
    private: ExampleDP | None = None


class Spec(Protocol):
    """Where a network comes from: `build` gives it once the shape of a row and the number of outputs are known."""

    def build(self, shape: Shape | None, outputs: int | None) -> Any: ...
    def __hash__(self) -> int: ...


class Engine(Protocol):
    """What a backend does with a network. Every array is NumPy's, every result has a leading axis of parties."""

    def fit(self, model: Model, w: Array, group: Group, how: Fit, lr: float, linear: Array | None) -> Array: ...
    def grad(self, model: Model, w: Array, group: Group) -> Array: ...
    def scores(self, model: Model, w: Array, x: Array) -> Array: ...
    def losses(self, model: Model, w: Array, x: Array, y: Array) -> tuple[Array, Array, Array]: ...
    def width(self, model: Model) -> int: ...
    def check(self, optimiser: Optimiser) -> None: ...


@dataclass(frozen=True)
class Model:
    """A network and how it is computed. Shape and outputs, where not said, come from the data (`bind`)."""

    spec: Spec
    backend: Literal["jax", "torch"] = "jax"
    dtype: Literal["float32", "float64"] = "float32"
    shape: Shape | None = None
    outputs: int | None = None

    def bind(self, shape: Shape, outputs: int) -> Model:
        """Fill in what was left to the data; refuse a model made for other data."""
        for name, mine, theirs in (("shape", self.shape, shape), ("outputs", self.outputs, outputs)):
            if mine is not None and mine != theirs:
                raise ValueError(
                    f"the model is made for {name} {mine}, the data has {theirs}: "
                    f"leave the {name} out of the model, or load other data"
                )
        return replace(self, shape=shape, outputs=outputs)

    @property
    def net(self) -> Any:
        """The network for this shape."""
        return _build(self.spec, self.shape, self.outputs)

    @property
    def schema(self) -> Schema:
        found: Schema = self.net.schema
        return found

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return self.schema.size

    @property
    def engine(self) -> Engine:
        return engine(self.backend)

    @property
    def width(self) -> int:
        """How many parties one call likes to answer for."""
        return self.engine.width(self)

    def init(self, seed: int) -> Array:
        return np.asarray(self.net.init(seed), self.dtype)

    def fit(self, w: Array, group: Group, how: Fit, lr: float, linear: Array | None = None) -> Array:
        """Train every party of the group from w; return their parameters, (parties, size)."""
        return self.engine.fit(self, w, group, how, lr, linear)

    def grad(self, w: Array, group: Group) -> Array:
        """Return the gradient of each party's mean loss at w, (parties, size)."""
        return self.engine.grad(self, w, group)

    def scores(self, w: Array, x: Array) -> Array:
        """Return what the network says of rows: logits, or predictions of numbers."""
        return self.engine.scores(self, w, x)

    def evaluate(self, w: Array, group: Group) -> Mapping[str, Array]:
        """Return sums over each party's samples: n, loss, and correct, or squares with y and y² for numbers."""
        real = np.arange(group.rows.shape[1]) < group.size[:, None]
        rows = group.rows[real]
        x, y = group.samples.x[rows], group.samples.y[rows]
        loss, right, n = self.engine.losses(self, w, x, y)
        party = np.repeat(np.arange(len(group)), group.size)

        def total(per_row: Array) -> Array:
            return np.bincount(party, weights=per_row, minlength=len(group))

        sums = {"n": total(n), "loss": total(loss)}
        if self.net.loss == "squared":
            flat = np.asarray(y, np.float64).reshape(len(y), -1).sum(1)
            return {**sums, "squares": total(right), "y": total(flat), "yy": total(flat**2)}
        return {**sums, "correct": total(right)}


@lru_cache(maxsize=64)
def _build(spec: Spec, shape: Shape | None, outputs: int | None) -> Any:
    return spec.build(shape, outputs)


def engine(backend: str) -> Engine:
    """Return the backend's engine; importing it imports its framework only when it computes."""
    if backend == "jax":
        from atoll.models.jax_engine import JaxEngine

        return JaxEngine()
    if backend == "torch":
        from atoll.models.torch_engine import TorchEngine

        return TorchEngine()
    raise ValueError(f"backend '{backend}' is unknown: use 'jax' or 'torch'")
