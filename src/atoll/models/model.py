"""A model: a network, its loss, a backend. It offers fit, grad, scores and evaluate on one flat parameter vector.

`fit` minimises the tilted local objective f(w) + ⟨linear, w⟩ + prox/2·‖w − centre‖², from which the methods are made;
so no method mentions a framework. Parties may share one vector, or have one each (personal models).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Literal, NamedTuple, Protocol

import numpy as np

from atoll.core.given import Part
from atoll.core.method import DataSummary, Evaluation
from atoll.core.party import Group
from atoll.core.tree import Array, Schema
from atoll.core.wire import Mismatch
from atoll.models.example_dp import ExampleDP
from atoll.models.layers import Shape, Tensor
from atoll.models.net import Net
from atoll.models.optimiser import Optimiser


@dataclass(frozen=True)
class Fit:
    """How a party trains: the settings of `Model.fit`.

    With `example_dp` batches are Poisson samples, and the loss of an example is the mean over its own labels. `linear`
    and `prox` are added after the noise, so they must not depend on the data to protect.

    Args:
        epochs: passes over the samples, 1 or more. Default 1.
        batch: samples of one step, 1 or more; None (the default): all samples.
        optimiser: Default SGD.
        prox: factor of the proximal term, 0 or more. Default 0.
        example_dp: clipping and noise of single examples. Default: none.

    Example:
        >>> from atoll.models import Fit
        >>> Fit(epochs=2, batch=10).batch
        10
    """

    epochs: int = 1
    batch: int | None = None
    optimiser: Optimiser = Optimiser()
    prox: float = 0.0
    example_dp: ExampleDP | None = None

    def steps(self, samples: Array) -> Array:
        """Return how many steps parties of so many samples take."""
        return np.asarray(self.epochs * (np.ones_like(samples) if self.batch is None else -(-samples // self.batch)))


class Network(Protocol):
    """What a backend computes: named parameters that make scores of rows, and the loss of those scores."""

    @property
    def schema(self) -> Schema: ...
    @property
    def loss(self) -> str:
        """One of `atoll.models.net.Loss`, or "own" where the network computes its losses itself."""
        ...

    @property
    def ignore(self) -> int | None: ...
    @property
    def heavy(self) -> bool: ...
    def init(self, seed: int) -> Array: ...
    def apply(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor: ...


class FitStart(NamedTuple):
    """Where parties start, and what is added to their loss: each (size,) for all of them, or (parties, size)."""

    w: Array
    linear: Array | None = None
    centre: Array | None = None  # of the pull; None: where they start

    def of(self, which: int | slice | Array) -> FitStart:
        """Return what belongs to one party of the group (by its place), or to some."""
        w, linear, centre = (leaf if leaf is None or leaf.ndim == 1 else leaf[which] for leaf in self)
        assert w is not None
        return FitStart(w, linear, centre)


class Fitted(NamedTuple):
    """Parameters of parties after training, (parties, size), and the mean of their losses while they trained."""

    w: Array
    loss: Array


def mean_loss(total: Array, samples: Array) -> Array:
    """Divide the losses of all samples of all steps, added up for each party, by their number."""
    return np.asarray(total, np.float64) / np.maximum(np.asarray(samples).sum(-1), 1)


class Spec(Protocol):
    """Where a network comes from: `build` gives it once the shape of a row and the number of outputs are known."""

    def build(self, shape: Shape | None, outputs: int | None) -> Network: ...
    def __hash__(self) -> int: ...


class Engine(Protocol):
    """What a backend does with a network. Every array is NumPy's.

    Where w may be one vector for all or one row a party, results have a leading axis of parties; `…_each` take one row
    a party, and give one row for every sample of the group, party after party.
    """

    def fit(self, model: Model, start: FitStart, group: Group, how: Fit, lr: float) -> Fitted:
        """Train; with `example_dp` no losses are computed: they would be told without noise."""
        ...

    def grad(self, model: Model, w: Array, group: Group) -> tuple[Array, Array]: ...
    def scores(self, model: Model, w: Array, x: Array) -> Array: ...
    def scores_each(self, model: Model, w: Array, group: Group) -> Array: ...
    def losses(self, model: Model, w: Array, x: Array, y: Array) -> tuple[Array, Array, Array]: ...
    def losses_each(self, model: Model, w: Array, group: Group) -> tuple[Array, Array, Array]: ...
    def group_size(self, model: Model) -> int: ...
    def check(self, optimiser: Optimiser) -> None: ...


@dataclass(frozen=True)
class Model(Part):
    """A network, a loss and a backend, on one flat parameter vector.

    Args:
        spec: what builds the network for a shape and a number of outputs; `atoll.models` has functions for it.
        backend: "jax" (the default) or "torch".
        dtype: of the parameters, "float32" (the default) or "float64".
        shape: shape of one row. Default: that of the data.
        outputs: number of classes, or of real targets. Default: that of the data.

    Example:
        >>> import atoll
        >>> model = atoll.models.softmax().bind((64,), 10)
        >>> model.size, model.init(0).shape
        (650, (650,))
    """

    spec: Spec
    backend: Literal["jax", "torch"] = "jax"
    dtype: Literal["float32", "float64"] = "float32"
    shape: Shape | None = None
    outputs: int | None = None

    def bind(self, shape: Shape, outputs: int) -> Model:
        """Fill in what was left to the data; refuse a model made for other data."""
        for name, mine, theirs in (("shape", self.shape, shape), ("outputs", self.outputs, outputs)):
            if mine is not None and mine != theirs:
                raise Mismatch(
                    f"the model is made for {name} {mine}, the data has {theirs}: "
                    f"leave the {name} out of the model, or load other data"
                )
        return replace(self, shape=shape, outputs=outputs)

    def fitted(self, summary: DataSummary) -> Model:
        """Take shape and outputs from a summary of data; refuse labels that the loss is not for."""
        x, y = summary.sample.leaves["x"], summary.sample.leaves["y"]
        outputs = summary.classes if summary.kind == "classes" else prod(y.shape or ())
        try:
            bound = self.bind(tuple(x.shape or ()), outputs)
            loss = bound.net.loss
        except ValueError as error:
            raise Mismatch(str(error)) from None
        if loss != "own" and (loss == "squared") != (summary.kind == "real"):
            real = summary.kind == "real"
            has, remedy, other = ("numbers", "linear", "squared") if real else ("classes", "softmax", "cross_entropy")
            raise Mismatch(
                f"the data's labels are {has}, which the loss '{loss}' is not for: use a model such as {remedy}, or "
                f"give a module of your own loss='{other}'"
            )
        if summary.kind == "classes" and isinstance(bound.net, Net) and bound.net.positions != tuple(y.shape or ()):
            gives, has, remedy = "each position", "a row", "softmax"
            if not bound.net.positions:
                gives, has, remedy = has, gives, "char_lstm"
            raise Mismatch(
                f"the model gives scores for {gives}, and the data has a label for {has}: use a model such as {remedy}"
            )
        return bound

    @property
    def net(self) -> Network:
        """The network for this shape."""
        return _build(self.spec, self.shape, self.outputs)

    @property
    def schema(self) -> Schema:
        return self.net.schema

    @cached_property
    def size(self) -> int:
        """How many parameters there are."""
        return self.schema.size

    @property
    def engine(self) -> Engine:
        return engine(self.backend)

    @property
    def group_size(self) -> int:
        """How many parties one call likes to answer for."""
        return self.engine.group_size(self)

    def init(self, seed: int) -> Array:
        return np.asarray(self.net.init(seed), self.dtype)

    def fit(
        self, w: Array, group: Group, how: Fit, lr: float, linear: Array | None = None, centre: Array | None = None
    ) -> Array:
        """Train every party of the group; return their parameters, (parties, size).

        Args:
            w: where they start: (size,) for all of them, or (parties, size).
            group: the parties.
            how: epochs, batch size, optimiser, pull, privacy.
            lr: the learning rate.
            linear: is added to every gradient, shaped as w may be; default: nothing.
            centre: what `how.prox` pulls to, shaped as w may be; default: where each party starts.
        """
        return self.train(w, group, how, lr, linear, centre).w

    def train(
        self, w: Array, group: Group, how: Fit, lr: float, linear: Array | None = None, centre: Array | None = None
    ) -> Fitted:
        """Train as `fit` does; return also each party's mean loss over the samples of its steps, NaN with example_dp.

        The loss is that of the data alone, without what `linear` and the pull add.
        """
        for name, given in (("w", w), ("linear", linear), ("centre", centre)):
            self._check(name, given, group)
        middle = None if centre is None else np.asarray(centre, self.dtype)
        return self.engine.fit(self, FitStart(w, linear, middle), group, how, lr)

    def grad(self, w: Array, group: Group) -> Array:
        """Return the gradient of each party's mean loss, (parties, size), at w: (size,) for all, or (parties, size)."""
        return self.grad_and_loss(w, group)[0]

    def grad_and_loss(self, w: Array, group: Group) -> tuple[Array, Array]:
        """Return what `grad` does, and each party's mean loss at w."""
        self._check("w", w, group)
        return self.engine.grad(self, w, group)

    def scores(self, w: Array, x: Array) -> Array:
        """Return what the network says of rows: logits, or predictions of numbers."""
        return self.engine.scores(self, w, x)

    def scores_of(self, w: Array, group: Group) -> Array:
        """Return what the network says of a group's samples, party after party; w is (size,) or (parties, size)."""
        self._check("w", w, group)
        if w.ndim == 2:
            return self.engine.scores_each(self, w, group)
        return self.scores(w, group.samples.x[real_rows(group)])

    def _check(self, name: str, given: Array | None, group: Group) -> None:
        if given is not None and given.shape not in ((self.size,), (len(group), self.size)):
            raise Mismatch(
                f"{name} has shape {given.shape}: give {self.size:,} numbers, as many as the model has parameters, or "
                f"a row of them for each of the {len(group):,} parties"
            )

    def evaluate(self, w: Array, group: Group) -> Mapping[str, Array]:
        """Return sums over each party's samples: n, loss, and correct, or squares with y and y² for numbers.

        w is (size,) for all parties, or (parties, size): each is evaluated with its own parameters.
        """
        self._check("w", w, group)
        rows = real_rows(group)
        y = group.samples.y[rows]
        if w.ndim == 2:
            loss, right, n = self.engine.losses_each(self, w, group)
        else:
            loss, right, n = self.engine.losses(self, w, group.samples.x[rows], y)
        party = np.repeat(np.arange(len(group)), group.size)

        def total(per_row: Array) -> Array:
            return np.bincount(party, weights=per_row, minlength=len(group))

        sums = {"n": total(n), "loss": total(loss)}
        if self.net.loss == "squared":
            flat = np.asarray(y, np.float64).reshape(len(y), -1).sum(1)
            return {**sums, "squares": total(right), "y": total(flat), "yy": total(flat**2)}
        return {**sums, "correct": total(right)}

    @property
    def evaluation(self) -> Evaluation:
        """What evaluating gives: sums, and the metrics that are made of them."""
        real = self.net.loss == "squared"
        names = ("n", "loss", "squares", "y", "yy") if real else ("n", "loss", "correct")
        better: dict[str, Literal["high", "low"]] = (
            {"mse": "low", "loss": "low", "r2": "high"} if real else {"accuracy": "high", "loss": "low"}
        )
        right = "squares" if real else "correct"
        return Evaluation(
            dict.fromkeys(names, ()), _errors if real else _scores, better, lambda sums: sums[right] / sums["n"]
        )


def real_rows(group: Group) -> Array:
    """Return the rows of all samples of a group, party after party."""
    return np.asarray(group.rows[np.arange(group.rows.shape[1]) < group.size[:, None]])


def _scores(sums: Mapping[str, Array]) -> dict[str, float]:
    n = max(float(sums["n"]), 1.0)
    return {"loss": float(sums["loss"]) / n, "accuracy": float(sums["correct"]) / n}


def _errors(sums: Mapping[str, Array]) -> dict[str, float]:
    n = max(float(sums["n"]), 1.0)
    spread = float(sums["yy"]) - float(sums["y"]) ** 2 / n
    r2 = 1.0 - float(sums["squares"]) / spread if spread > 0 else 0.0
    return {"loss": float(sums["loss"]) / n, "mse": float(sums["squares"]) / n, "r2": r2}


@lru_cache(maxsize=64)
def _build(spec: Spec, shape: Shape | None, outputs: int | None) -> Network:
    return spec.build(shape, outputs)


def engine(backend: str) -> Engine:
    """Return the backend's engine; importing it imports its framework only when it computes."""
    if backend == "jax":
        from atoll.models.jax_engine import JaxEngine

        return JaxEngine()
    from atoll.models.torch_engine import TorchEngine

    return TorchEngine()
