"""Job files drawn at random over the whole catalogue: every part, and of its fields values that are likely and odd."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from random import Random
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from atoll.core.given import options
from atoll.data import SCHEMES
from atoll.data.errors import options_of
from atoll.job.catalogue import PARTS, find, parameters
from atoll.job.hints import kinds
from atoll.methods.server import ServerOptimiser
from atoll.models.optimiser import Optimiser

SETS = ("digits", "digits", "breast_cancer", "wine", "diabetes", "synthetic")
COUNTS = (1, 2, 3, 4, 5, 8, 12)
ODD_COUNTS = (0, -1, 1_000)
SHARES = (0.1, 0.2, 0.5, 0.9, 1.0)
ODD_SHARES = (0.0, -1.0, 1e-9, 2.0, 1e9, float("inf"), float("nan"))
WORDS = ("test.accuracy", "test.mse", "local.loss", "test.loss", "local.accuracy", "given", "party", "nobody")
OPTIMISERS = ("sgd", "adam", "adagrad", "yogi", "lion", "lbfgs", "nobody")
ODD = 0.06  # how often a value is one that hardly any job has
FITS = 0.9  # how often a part is one that suits the data
LABELS = {"diabetes": ("linear",), "breast_cancer": ("softmax", "logistic", "mlp")}
OTHER_LABELS = ("softmax", "mlp", "mlp")
HIDDEN = ("secure_sum", "light_sum", "encrypted_sum")
REAL = ("mse", "mae", "r2")
# What hardly any value drawn at random could be.
USUAL: dict[str, dict[str, Any]] = {
    "trace": {"file": "nowhere.csv"}, "ring": {"width": 32}, "encrypted_sum": {"bits": 2048},
    "batches": {"size": 2, "number": 4}, "partition": {"number": 4}, "count": {"number": 4}, "by_size": {"number": 4},
    "round_robin": {"number": 4}, "least_served": {"number": 4},
    "oversample": {"factor": 1.5}, "target": {"metric": "test.loss"}, "mlp": {"hidden": [4]},
    "cnn": {"channels": [2, 3], "units": 4}, "char_lstm": {"units": 4},
}  # fmt: skip


def job_of(seed: int) -> dict[str, Any]:
    """Draw a job file, as the table that TOML would make of it."""
    draw = _Draw(Random(seed))
    said: dict[str, Any] = {"name": "fuzz", "rounds": draw.of((1, 2)), "seed": seed, "data": draw.data()}
    said["method"] = draw.part("method")
    if draw.rarely(FITS):
        said["method"]["model"] = draw.part("model", draw.of(LABELS.get(said["data"]["use"], OTHER_LABELS)))
    said["stages"] = draw.stages()
    for kind, how_often in (("select", 0.9), ("combine", 0.3), ("availability", 0.3)):
        if draw.rarely(how_often):
            said[kind] = draw.part(kind)
    if draw.rarely(0.2):
        said |= draw.hidden()
    for key, kind in (("stop", "stop"), ("metrics", "metric")):
        said[key] = [draw.part(kind) for _ in range(draw.of((0, 0, 0, 1, 2)))]
    if draw.rarely(FITS):
        real = said["data"]["use"] == "diabetes"
        said["metrics"] = [one for one in said["metrics"] if (one["use"] in REAL) == real]
    if draw.rarely(0.2):
        said["eval_every"] = draw.count()
    if draw.rarely(0.2):
        said["train_loss"] = draw.of((True, False))
    if draw.rarely(0.1):
        said["phases"] = {draw.of(("train", "delta")): {"stages": draw.stages(), "combine": draw.part("combine")}}
    return said


class _Draw:
    def __init__(self, random: Random) -> None:
        self.random = random

    def of(self, choices: Any) -> Any:
        return self.random.choice(tuple(choices))

    def count(self) -> int:
        return int(self.of(ODD_COUNTS if self.rarely(ODD) else COUNTS))

    def share(self) -> float:
        return float(self.of(ODD_SHARES if self.rarely(ODD) else SHARES))

    def data(self) -> dict[str, Any]:
        use = self.of(SETS)
        said: dict[str, Any] = {"use": use, "clients": self.of((1, 3, 4, 6, 8, 8, 12))}
        if use != "synthetic":
            by = "iid" if self.rarely(FITS if use == "diabetes" else 0.5) else self.of(SCHEMES)
            said |= {"by": by, "test": self.of((0.0, 0.2, 0.2))}
            said |= {key: self.of((self.share(), self.count())) for key in options_of(SCHEMES[by]) if self.rarely(0.2)}
        return said

    def rarely(self, how_often: float) -> bool:
        return self.random.random() < how_often

    def stages(self) -> list[dict[str, Any]]:
        """Draw stages in an order that often makes sense, or in none."""
        names = [name for name in PARTS["stage"] if self.rarely(0.07)]
        mean = self.of(("weigh", "average"))
        names = [mean, *names] if self.rarely(0.4) else [*names, mean] if self.rarely(0.9) else names
        if self.rarely(0.4):
            names.insert(0, "clip")
        if self.rarely(0.2):
            self.random.shuffle(names)
        return [self.part("stage", name) for name in names]

    def hidden(self) -> dict[str, Any]:
        """Draw a channel that hides the vectors, most often one that can be."""
        names = ["clip", "average", "ring", *(["gaussian"] if self.rarely(0.3) else [])]
        stages = [self.part("stage", name) for name in names]
        stages[1]["by"] = "expected"
        return {"stages": stages, "combine": self.part("combine", self.of(HIDDEN))}

    def part(self, kind: str, name: str | None = None, depth: int = 0) -> dict[str, Any]:
        name = name or self.of(PARTS[kind])
        said: dict[str, Any] = {"use": name}
        for field, (hint, default) in parameters(find(kind, name)).items():
            needed = default is inspect.Parameter.empty
            if needed or (depth < 2 and self.rarely(0.15)):
                said[field] = self.value(field, hint, depth)
        return {**said, **USUAL.get(name, {})} if self.rarely(FITS) else said

    def value(self, field: str, hint: object, depth: int) -> Any:
        if self.rarely(ODD / 4):
            return self.of(("nobody", -1, 0.5, True, [], {}, [1, "x"]))
        option = self.of([o for o in options(hint) if o is not NoneType] or [str])
        if option in kinds():
            return self.part(kinds()[option], None, depth + 1)
        if option in (Optimiser, ServerOptimiser):
            odd = {self.of(("b1", "eps", "momentum")): self.of((0.5, "x", [1]))} if self.rarely(ODD) else {}
            return {"use": self.of(OPTIMISERS), **odd, **({"lr": self.share()} if option is ServerOptimiser else {})}
        if get_origin(option) is Literal:
            return self.of(get_args(option))
        if field == "backend":
            return "jax"
        drawn: Mapping[object, Any] = {int: self.count, float: self.share, bool: lambda: self.rarely(0.5)}
        if option in drawn:
            return drawn[option]()
        return self.of(WORDS) if option is str else [self.count(), self.count()]
