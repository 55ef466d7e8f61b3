"""A module of one's own that cannot be trained is refused in one sentence, which tells only what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pytest
from flax import linen, nnx
from torch import nn

import atoll
from atoll.core.errors import AtollError
from atoll.job.file import load
from atoll.models import Model, equinox, flax, functions, module, softmax


class Pair(nn.Module):  # type: ignore[misc]
    """Returns its scores and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.out(x), x


class Faulty(Pair):
    def forward(self, x: Any) -> Any:
        raise KeyError("a fault of its own")


def start(seed: int) -> dict[str, np.ndarray]:
    return {"w": np.zeros((6, 3))}


def text(e: int) -> nn.Module:
    """Take symbols, of which the later layer makes scores."""
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(e, 3))


TORCH = r"give a torch Module, or a function without arguments that makes one, such as lambda: torch\.nn\.Linear"
SLIPS: dict[str, tuple[Callable[[], Model], str]] = {
    "a class with arguments": (lambda: module(nn.Linear), rf"cannot be made \(TypeError: .*'in_features'.*\): {TORCH}"),
    "nothing": (lambda: module(None), f"a NoneType is no module: {TORCH}"),
    "a name": (lambda: module("x"), f"a str is no module: {TORCH}"),
    "a function of no module": (lambda: module(lambda: 3), f"returns a int: {TORCH}"),
    "a function that fails": (lambda: module(lambda: 1 / 0), r"\(ZeroDivisionError: division by zero\)"),
    "a lazy layer": (lambda: module(nn.LazyLinear(3)), r"a lazy layer.*such as torch\.nn\.Linear\(64, 10\)"),
    "a lazy layer of a function": (lambda: module(lambda: nn.LazyLinear(3)), "has a lazy layer"),
    "a tuple": (lambda: module(Pair), "returns a tuple: return only the scores, as one array"),
    "a tuple of JAX": (lambda: functions(start, lambda p, x: (x @ p["w"], x)), "returns a tuple: return only"),
    "a wrong first layer": (
        lambda: module(nn.Linear(4, 3)),
        r"fails on .* \(6,\) \(RuntimeError: mat1 and mat2 .*\): change it so that it takes zeros of shape \(2, 6\)",
    ),
    "a wrong later layer": (
        lambda: module(nn.Sequential(nn.Linear(6, 5), nn.Linear(4, 3))),
        r"\(RuntimeError: mat1 and mat2 shapes cannot be multiplied \(2x5 and 4x3\)",
    ),
    "a wrong later layer for symbols": (lambda: module(text(5)), r"as whole numbers, RuntimeError.* \(12x4 and 5x3\)"),
    "another type": (lambda: module(nn.Linear(6, 3).double()), "RuntimeError: .*dtype"),
    "a fault of its own": (lambda: module(Faulty), r"\(KeyError: 'a fault of its own'\): change it"),
    "too many scores": (lambda: module(nn.Linear(6, 2)), r"and this data needs \(2, …, 3\)"),
    "two scores for logistic": (lambda: module(nn.Linear(6, 2), "logistic"), r"'logistic' needs \(2, …, 1\)"),
    "a loss that there is not": (lambda: module(Pair, "mse2"), "loss = 'mse2': use 'cross_entropy' or 'logistic' or"),
    "a list as loss": (lambda: flax(linen.Dense(3), ["squared"]), "loss = .'squared'.: use"),
    "a label as text": (lambda: flax(linen.Dense(3), ignore="pad"), "ignore must be a whole number, got 'pad'"),
    "nothing for Flax": (lambda: flax(None), "a NoneType is no module: give a linen Module, or a function"),
    "the class of a linen Module": (lambda: flax(linen.Dense), "give a linen Module, or a function that makes an nnx"),
    "an nnx Module": (lambda: flax(nnx.Linear(6, 3, rngs=nnx.Rngs(0))), "an nnx Module changes in place"),
    "an nnx function that fails": (lambda: flax(nnx.Linear), r"cannot be made \(TypeError"),
    "an nnx function of nothing": (lambda: flax(lambda rngs: None), "returns a NoneType: give a linen Module"),
    "nothing for Equinox": (lambda: equinox(None), "a NoneType is no module: give an Equinox module"),
    "the class of an Equinox module": (lambda: equinox(eqx.nn.Linear), r"cannot be made \(TypeError"),
    "an Equinox function of a number": (lambda: equinox(lambda key: 3), "returns a int: give an Equinox module"),
    "no functions": (lambda: functions(None, None), r"give a function init\(seed\)"),
    "neither scores nor losses": (lambda: functions(start), "can compute nothing yet"),
    "a number as function": (lambda: functions(start, 3), "apply must be a function, got 3"),
    "a start that fails": (lambda: functions(lambda seed: 1 / 0, lambda p, x: x), r"\(ZeroDivisionError"),
    "a model of other data": (lambda: softmax().bind((4,), 3), "is made for shape"),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_module_that_cannot_be_trained_is_refused_with_the_reason(slip: str) -> None:
    make, words = SLIPS[slip]
    with pytest.raises(AtollError, match=words) as refused:
        _ = make().bind((6,), 3).size
    assert "\n" not in str(refused.value)
    assert "first layer" not in str(refused.value)


@pytest.mark.parametrize(("outputs", "words"), [
    (2, r"this data needs \(2, …, 1\): give its last layer 1 unit"), (1, r"labels are numbers.* loss='squared'"),
])  # fmt: skip
def test_the_wrong_loss_for_numbers_is_not_called_what_the_data_needs(outputs: int, words: str) -> None:
    data = atoll.data.build({"use": "diabetes", "clients": 3}, 0)
    with pytest.raises(AtollError, match=words) as refused:
        atoll.simulate(atoll.Job(atoll.FedAvg(module(nn.Linear(10, outputs)))), data, workers=0)
    assert "cross_entropy on this data" not in str(refused.value)


@pytest.mark.parametrize(("line", "words"), [
    ('k = "5"', "metrics.0.k = '5': write a whole number, such as 5"),
    ("k = 2.5", "metrics.0.k = 2.5: write a whole number, such as 5"),
])  # fmt: skip
def test_a_field_of_a_job_file_is_refused_with_what_to_write(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        '[data]\nuse = "digits"\n[method]\nuse = "fedavg"\nmodel = "softmax"\n'
        f'[[metrics]]\nuse = "top_k_accuracy"\n{line}\n'
    )
    with pytest.raises(AtollError) as refused:
        load(str(file))
    assert str(refused.value).startswith(f"{file}: {words}")
