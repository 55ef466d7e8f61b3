"""Every part obeys the public checks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.wire import Wire, chain
from atoll.data.federated import Federated
from atoll.testing import check_combine, check_method, check_part, check_refusal, check_rule, check_stage

SELECTS = [
    atoll.All(), atoll.Uniform(0.3), atoll.Count(4), atoll.Poisson(0.2), atoll.BySize(3),
    atoll.Over(atoll.Count(4), 1.5),
]  # fmt: skip


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
    wire = Wire(10, 5)
    assert chain(atoll.Clip(1.0), atoll.Weigh())(wire)[0].l2 is None
    assert chain(atoll.Clip(1.0), atoll.Average())(wire)[0].l2 == 1.0


@pytest.mark.parametrize("rule", [atoll.Mean(), atoll.Median(), atoll.TrimmedMean(2)])
def test_rules(rule: object) -> None:
    check_rule(rule)  # type: ignore[arg-type]
    check_rule(rule, n=8, d=1)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("combine", [atoll.Sum(), atoll.Each(atoll.Mean()), atoll.Each(atoll.Median())])
def test_combines(combine: object) -> None:
    check_combine(combine)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [*SELECTS, atoll.Always(), atoll.Flaky(), atoll.Diurnal(), atoll.Trace("t.csv"),
                                  atoll.Target(), atoll.Patience(), atoll.Still(), atoll.WallTime(),
                                  atoll.Exponential(), atoll.Steps(), atoll.Cosine(), atoll.Channel()])  # fmt: skip
def test_other_parts_are_records(part: object) -> None:
    check_part(part)


MODEL = atoll.models.softmax()
METHODS = [
    atoll.FedAvg(MODEL, epochs=2, batch=4), atoll.FedAvg(MODEL, batch=None), atoll.FedProx(MODEL, mu=0.5),
    atoll.FedSGD(MODEL), atoll.FedSGD(MODEL, by="weights"), atoll.fedavgm(MODEL), atoll.fedadam(MODEL),
    atoll.fedyogi(MODEL), atoll.fedadagrad(MODEL),
    atoll.FedAvg(atoll.models.mlp((8,)), batch=5, optimiser=atoll.optimiser("adam", b1=0.8)),
    atoll.FedAvg(atoll.models.mlp((120, 120)), batch=5, optimiser=atoll.optimiser("sgd", momentum=0.9)),
    atoll.FedAvg(atoll.models.mlp((120, 120), backend="torch"), batch=5),
    atoll.FedAvg(atoll.models.softmax(backend="torch"), epochs=2, batch=4),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_methods(method: object, unequal: Federated) -> None:
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
    (lambda: atoll.Over(atoll.All(), 0.5), "factor"), (lambda: atoll.Flaky(0.0), "probability"),
    (lambda: atoll.FedAvg(MODEL, lr=-1.0), "lr"), (lambda: atoll.FedAvg(MODEL, epochs=0), "epoch"),
    (lambda: atoll.FedAvg(MODEL, batch=0), "batch"), (lambda: atoll.FedSGD(MODEL, by="mail"), "gradients"),
    (lambda: atoll.Job(atoll.FedAvg(MODEL), rounds=0), "rounds"), (lambda: atoll.TrimmedMean(-1), "f="),
    (lambda: atoll.TrimmedMean(3)(np.zeros((6, 2))), "more than 6"), (lambda: atoll.Always(drop=1.0), "drop"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_optimisers_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'adam'"):
        atoll.optimiser("adm").make()
    with pytest.raises(ValueError, match="did you mean 'momentum'"):
        atoll.optimiser("sgd", momentun=0.9).make()
