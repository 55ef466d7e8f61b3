"""The smallest parts of their kinds: a stage, a rule, a stop."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atoll.core.method import History, Stop
from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Rule, Stage, StageMemory, Wire


@dataclass(frozen=True)
class Scale(Stage):
    """Multiply vectors on their way, and divide what comes of them."""

    factor: float = 0.5

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        def encode(x: Array, memory: StageMemory, context: EncodeContext) -> Coded:
            return Coded(x * x.dtype.type(self.factor))

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            return Coded(x / x.dtype.type(self.factor))

        bound = None if wire.l2 is None else wire.l2 * self.factor * (1 + 1e-6)
        return replace(wire, l2=bound), Codec(encode, decode)


@dataclass(frozen=True)
class Medoid(Rule):
    """The row that is nearest to all others."""

    def __call__(self, rows: Array) -> Array:
        gram = rows @ rows.T
        square = np.diag(gram)
        return rows[(square + square[:, None] - 2 * gram).sum(1).argmin()]


@dataclass(frozen=True)
class Steady(Stop):
    """Stop when a metric has been better than a value in so many evaluations in a row."""

    metric: str = "test.accuracy"
    value: float = 0.9
    times: int = 3

    def __call__(self, history: History) -> str | None:
        sign, last = history.sign(self.metric), history.curves.get(self.metric, ())[-self.times :]
        good = len(last) == self.times and all(sign * v > sign * self.value for _, v in last)
        return f"{self.metric} was better than {self.value:g} in {self.times} evaluations" if good else None
