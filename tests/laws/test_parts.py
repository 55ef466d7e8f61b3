"""Every part obeys the public checks. Parts come from the catalogue: who adds one says here how it is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.wire import Wire, chain
from atoll.data.federated import Federated
from atoll.job.catalogue import PARTS, build, find
from atoll.testing import (
    check_combine,
    check_method,
    check_part,
    check_refusal,
    check_rule,
    check_select,
    check_stage,
)  # fmt: skip

# A noise's scale comes from a bound, and what it is divided by must not tell who came.
BOUNDED = (atoll.Clip(1.0), atoll.Average("expected"))
STAGES: dict[str, list[tuple[Any, tuple[Any, ...]]]] = {  # each stage with those that it needs before it
    "weigh": [(atoll.Weigh(), ()), (atoll.Weigh(max_weight=20.0), (atoll.Clip(1.0),))],
    "average": [(atoll.Average(), ()), (atoll.Average("expected"), ())],
    "clip": [(atoll.Clip(1.0), ()), (atoll.Clip(0.5, quantile=0.5), ())],
    "train_loss": [(atoll.TrainLoss(), ()), (atoll.TrainLoss(5.0), (atoll.Clip(1.0),))],
    "ring": [(atoll.Ring(), BOUNDED)],
    "gaussian": [
        (atoll.Gaussian(0.7), BOUNDED),
        (atoll.Gaussian(0.7), (*BOUNDED, atoll.Ring())),
        (atoll.Gaussian(0.7, "local"), BOUNDED),
        (atoll.Gaussian(0.7, "distributed"), (*BOUNDED, atoll.Ring())),
    ],
    "tree_noise": [
        (atoll.TreeNoise(0.7, every=8), BOUNDED),
        (atoll.TreeNoise(0.7, every=8), (*BOUNDED, atoll.Ring())),
    ],
    "top_k": [(atoll.TopK(0.3), ())],
    "random_k": [(atoll.RandomK(0.3), ())],
    "quantise": [(atoll.Quantise(4), ())],
    "sign": [(atoll.Sign(), ())],
    "rotate": [(atoll.Rotate(), ())],
    "low_rank": [(atoll.LowRank(2), ())],
}
IN_RING = chain(*BOUNDED, atoll.Ring())(Wire.of(40, 5))[0]
WHOLE = Wire.of(6, 5, divisor="answers", shapes=((6,),))
COMBINES = {  # each combine with the wire that it stands on
    "sum": [(atoll.Sum(), None), (atoll.Sum(), IN_RING)],
    "each": [(atoll.Each(atoll.Mean()), None), (atoll.Each(atoll.Median()), None)],
    "buffered": [
        (atoll.Buffered(buffer_size=5), WHOLE),
        (atoll.Buffered(buffer_size=5, power=0.0, max_staleness=0), WHOLE),
    ],
    "secure_sum": [(atoll.SecureSum(), IN_RING)],
    "light_sum": [(atoll.LightSum(), IN_RING)],
    "encrypted_sum": [(atoll.EncryptedSum(), IN_RING)],
}
NEEDED = {  # what parts that cannot be made of nothing are made of
    "each": {"rule": "median"}, "oversample": {"select": {"use": "count", "number": 4}}, "trace": {"file": "t.csv"},
    "budget": {"epsilon": 1.0}, "trimmed_mean": {"f": 2}, "clip": {"norm": 1.0},
}  # fmt: skip


def made(kind: str, name: str) -> Any:
    model = {"model": "softmax"} if kind == "method" else {}
    return build(kind, {"use": name, **model, **NEEDED.get(name, {})})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in PARTS.items() for name in names])
def test_every_part_is_a_record(kind: str, name: str) -> None:
    check_part(made(kind, name))


@pytest.mark.parametrize("name", PARTS["stage"])
def test_every_stage(name: str) -> None:
    for stage, first in STAGES[name]:
        assert type(stage) is find("stage", name)
        check_stage(stage, first=first)


@pytest.mark.parametrize("name", PARTS["combine"])
def test_every_combine(name: str) -> None:
    for combine, wire in COMBINES[name]:
        assert type(combine) is find("combine", name)
        check_combine(combine, wire, absent=((), (2,)))


@pytest.mark.parametrize("name", PARTS["rule"])
def test_every_rule(name: str) -> None:
    rule = made("rule", name)
    check_rule(rule)
    check_rule(rule, n=8, d=1)


@pytest.mark.parametrize("name", PARTS["select"])
def test_every_select(name: str) -> None:
    select = made("select", name)
    check_select(select, parties=30 if name == "partition" else 24)


@pytest.mark.parametrize("name", PARTS["method"])
def test_every_method(name: str, unequal: Federated) -> None:
    check_method(made("method", name), unequal)


def test_weigh_and_average_are_lossless() -> None:
    assert check_stage(atoll.Weigh(), lossless=True).mean
    assert check_stage(atoll.Average(), lossless=True).mean


@given(st.floats(1e-6, 1e6))
@settings(max_examples=30, deadline=None)
def test_clip_keeps_its_bound(norm: float) -> None:
    assert check_stage(atoll.Clip(norm)).l2 == norm


def test_clip_leaves_short_vectors_alone() -> None:
    check_stage(atoll.Clip(1e9), lossless=True)


def test_weigh_erases_the_bound_and_average_keeps_it() -> None:
    wire = Wire.of(10, 5)
    assert chain(atoll.Clip(1.0), atoll.Weigh())(wire)[0].l2 is None
    assert chain(atoll.Clip(1.0), atoll.Average())(wire)[0].l2 == 1.0


@given(st.integers(1, 30), st.integers(1, 50), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_median_and_trimmed_mean_equal_their_definitions(n: int, d: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(n, d))
    assert np.allclose(atoll.Median()(rows), np.median(rows, axis=0))
    f = (n - 1) // 3
    assert np.allclose(atoll.TrimmedMean(f)(rows), np.sort(rows, 0)[f : n - f].mean(0))


def test_median_survives_a_minority_of_anything() -> None:
    rows = np.random.default_rng(0).normal(size=(11, 100))
    rows[:5] = 1e9
    assert np.abs(atoll.Median()(rows)).max() < 5


def test_a_channel_is_a_record() -> None:
    check_part(atoll.Channel())


MODEL = atoll.models.softmax()
METHODS = [
    atoll.FedAvg(MODEL, epochs=2, batch=4), atoll.FedAvg(MODEL, batch=None), atoll.FedSGD(MODEL, by="weights"),
    atoll.FedAvg(atoll.models.mlp((8,)), batch=5, optimiser=atoll.optimiser("adam", b1=0.8)),
    atoll.FedAvg(atoll.models.mlp((120, 120)), batch=5, optimiser=atoll.optimiser("sgd", momentum=0.9)),
    atoll.FedAvg(atoll.models.mlp((120, 120), backend="torch"), batch=5),
    atoll.FedAvg(atoll.models.softmax(backend="torch"), epochs=2, batch=4),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_methods_of_other_settings(method: object, unequal: Federated) -> None:
    check_method(method, unequal)  # type: ignore[arg-type]


def test_what_makes_no_sense_is_refused(unequal: Federated) -> None:
    method = atoll.FedAvg(MODEL)

    def channel(*stages: object, combine: object = None) -> object:
        made = atoll.Channel(stages, combine or atoll.Sum())  # type: ignore[arg-type]
        return lambda: atoll.assemble(atoll.Job(method, channel=made), unequal)

    check_refusal(channel(), "FedAvg averages", "Weigh()")
    check_refusal(channel(atoll.Weigh(), atoll.Average()), "twice")
    check_refusal(channel(atoll.Weigh(), atoll.Clip(1.0)), "put Clip() first")
    check_refusal(channel(atoll.Weigh(), combine=atoll.Each(atoll.Median())), "Average() instead of Weigh()")
    check_refusal(lambda: atoll.assemble(atoll.Job(atoll.FedAvg(atoll.models.linear())), unequal), "softmax")


@pytest.mark.parametrize(("make", "words"), [
    (lambda: atoll.Clip(0.0), "positive"), (lambda: atoll.Uniform(1.5), "fraction"),
    (lambda: atoll.Poisson(0.0), "rate"), (lambda: atoll.Count(0), "at least one"),
    (lambda: atoll.Oversample(atoll.All(), 0.5), "factor"), (lambda: atoll.Flaky(0.0), "probability"),
    (lambda: atoll.FedAvg(MODEL, lr=-1.0), "lr"), (lambda: atoll.FedAvg(MODEL, epochs=0), "epoch"),
    (lambda: atoll.FedAvg(MODEL, batch=0), "batch"), (lambda: atoll.FedSGD(MODEL, by="mail"), "gradients"),
    (lambda: atoll.Job(atoll.FedAvg(MODEL), rounds=0), "rounds"), (lambda: atoll.TrimmedMean(-1), "f="),
    (lambda: atoll.TrimmedMean(3)(np.zeros((6, 2))), "more than 6"), (lambda: atoll.Always(drop=1.0), "drop"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(("backend", "name", "words"), [
    ("torch", "lion", "not in the torch backend, which has sgd, adam, adamw, adagrad, rmsprop: use backend='jax'"),
    ("torch", "adm", "torch backend"), ("jax", "adm", "did you mean 'adam'"),
])  # fmt: skip
def test_an_optimiser_that_the_backend_has_not_is_refused_when_the_method_is_made(
    backend: Any, name: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        atoll.FedAvg(atoll.models.softmax(backend=backend), optimiser=atoll.optimiser(name))
    at_the_server = atoll.ServerOptimiser(atoll.optimiser("lion"), 0.01)
    assert atoll.FedAvg(atoll.models.softmax(backend=backend), server=at_the_server).server == at_the_server


def test_optimisers_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'adam'"):
        atoll.optimiser("adm").make()
    with pytest.raises(ValueError, match="did you mean 'momentum'"):
        atoll.optimiser("sgd", momentun=0.9).make()
