"""What methods that train one model have in common: its size, its evaluation, how it is saved and used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import FunctionType
from typing import NamedTuple, Protocol, Self

import numpy as np

from atoll.core.method import DataSummary, Evaluation, Method, Phase, State
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree, unflatten
from atoll.core.wire import Mismatch
from atoll.methods.schedule import Schedule
from atoll.models.model import Fit, Model


def check_model(model: object) -> None:
    """Refuse what is no model: a name, a function that makes one, a module that was not wrapped.

    Args:
        model: what was given.
    """
    if isinstance(model, Model):
        return
    if isinstance(model, str):
        raise Mismatch(f"model = {model!r}: a model is needed, as in atoll.FedAvg(atoll.models.{model}())")
    if isinstance(model, type | FunctionType):
        raise Mismatch(f"{model.__name__} makes a model: call it, as in atoll.FedAvg(atoll.models.{model.__name__}())")
    raise Mismatch(f"a {type(model).__name__} is no model: wrap it, atoll.models.module(…), or see docs/models.md")


class Alone(NamedTuple):
    """How one party would train by itself.

    Args:
        model: the model.
        how: epochs, batch size and optimiser.
        lr: learning rate, above 0, or a schedule over rounds.
    """

    model: Model
    how: Fit
    lr: float | Schedule


class Trained(Method, Protocol):
    """Default bodies for a method with a `model` whose parameters are the state's and the broadcast's `params`."""

    model: Model

    def trained(self, leaf: str) -> Mapping[str, Phase]:
        """Return the one phase of a method that exchanges a vector as long as the model."""
        schema = Schema(((leaf, (self.model.size,)),))
        return {"train": Phase(schema, dtype=self.model.dtype, arrays=self.model.schema)}

    def bind(self, summary: DataSummary) -> Self:
        return replace(self, model=self.model.fitted(summary))  # type: ignore[type-var] # parts are dataclasses

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        return self.model.evaluate(broadcast["params"], group)

    def scores(self, broadcast: Tree, group: Group) -> Array:
        return self.model.scores_of(broadcast["params"], group)

    def predict(self, state: State, x: Array) -> Array:
        rows, shape = np.asarray(x), self.model.shape or ()
        if shape and rows.shape == shape:
            raise Mismatch(f"one row of shape {shape} is given: put it into a list of rows, as in predict([row])")
        if rows.shape[1:] != shape:
            raise Mismatch(
                f"rows have shape {rows.shape[1:]}, and the model was trained on {shape}: give the same columns"
            )
        if rows.dtype.kind not in "biuf":
            raise Mismatch(f"rows hold {rows.dtype}, not numbers: encode them as the training data was")
        return np.asarray(self.model.scores(np.asarray(state["params"]), rows))

    def parameters(self, state: State) -> Tree:
        return unflatten(np.asarray(state["params"]), self.model.schema)

    @property
    def group_size(self) -> int:
        return self.model.group_size

    @property
    def padding(self) -> int | None:
        return self.model.net.ignore

    @property
    def evaluation(self) -> Evaluation | None:
        return self.model.evaluation
