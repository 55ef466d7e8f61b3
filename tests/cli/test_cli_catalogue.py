"""Parts become tables and tables parts: what a job file says of a part is the part."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from atoll.combine import Each, Mean, Median, Sum, TrimmedMean
from atoll.job.catalogue import PARTS, BadJob, build, table
from atoll.job.file import dumps, from_table, parse, to_table
from atoll.job.job import Channel, Job
from atoll.methods import Cosine, Exponential, FedAvg, FedProx, FedSGD, Steps, fedadagrad, fedadam, fedavgm, fedyogi
from atoll.methods.server import ServerOptimiser as Server
from atoll.metrics import AUC, Recall
from atoll.models import char_lstm, cnn, lenet, linear, logistic, mlp, optimiser, softmax
from atoll.select import All, Always, BySize, Count, Diurnal, Flaky, Oversample, Poisson, Trace, Uniform
from atoll.stages import Average, Clip, Weigh
from atoll.stop.stops import Converged, Patience, Target, WallTime

NEEDS: dict[str, dict[str, Any]] = {
    "budget": {"epsilon": 1.0}, "clip": {"norm": 1.0}, "each": {"rule": "median"}, "oversample": {"select": "uniform"},
    "trace": {"file": "who.csv"},
}  # fmt: skip

OTHERS: dict[str, list[Any]] = {
    "method": [
        FedAvg(softmax(), batch=None),
        FedAvg(mlp((5, 7), dtype="float64"), epochs=3, batch=1, lr=1e-05, prox=0.5),
        FedAvg(mlp(), lr=Exponential(0.3, 0.5)),
        FedAvg(mlp(), lr=Steps(0.3, 7, 0.25)),
        FedAvg(mlp(), lr=Cosine(1.0, 30, 0.01), optimiser=optimiser("adam", b1=0.8, b2=0.9)),
        FedAvg(mlp(), optimiser=optimiser("sgd", momentum=0.9, nesterov=True)),
        FedAvg(mlp(), server=Server(optimiser("rmsprop", decay=0.5), 0.3)),
        FedSGD(linear(dtype="float64"), lr=Cosine(), by="weights"),
        FedProx(softmax(), mu=0.3, epochs=2),
        FedProx(softmax(), server=Server(optimiser("adam"), 0.1)),
        fedavgm(softmax(), server_lr=0.5, momentum=0.7, batch=None),
        fedadam(softmax(), b1=0.5, b2=0.6, eps=1e-8, lr=Exponential()),
        fedyogi(softmax(), server_lr=1.0, epochs=5),
        fedadagrad(softmax(), eps=1.0, prox=0.1),
    ],
    "model": [
        mlp((3,), "squared"), mlp((), backend="torch"), cnn((2, 3), 4, backend="torch"), lenet(backend="torch"),
        char_lstm(4, 2, False), linear(dtype="float64"), logistic(backend="torch", dtype="float64"),
    ],
    "select": [
        Uniform(0.0), Uniform(1.0), Count(3), Poisson(0.5), BySize(1), Oversample(Uniform(0.2), 1.5),
        Oversample(Oversample(All(), 1.0)),
    ],
    "stage": [Clip(1e-300), Clip(3), Clip(float("inf"))],
    "combine": [Each(TrimmedMean(2)), Each(Median()), Each(Mean()), Sum()],
    "rule": [TrimmedMean(0)],
    "stop": [Target("local.r2", -1.5), Patience("local.loss", 3, 1e-12), Converged(0.0), WallTime(0.5)],
    "availability": [Always(0.5), Flaky(1.0, 0.1), Diurnal(0.2, 0.3, 5, 0.4), Trace('a "b"\\c\tü.csv', 0.25)],
    "schedule": [Exponential(2.0, 1.0), Steps(1.0, 1, 1.0), Cosine(1.0, 1, 1.0)],
}  # fmt: skip


def again(kind: str, part: Any) -> Any:
    text = dumps({"part": table(part)})
    return build(kind, tomllib.loads(text)["part"])


def default(kind: str, name: str) -> Any:
    model = {"model": "softmax"} if kind == "method" else {}
    return build(kind, {"use": name, **model, **NEEDS.get(name, {})})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, known in PARTS.items() for name in known])
def test_every_part_survives_the_way_through_a_file(kind: str, name: str) -> None:
    part = default(kind, name)
    assert again(kind, part) == part


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, parts in OTHERS.items() for part in parts], ids=repr)
def test_parts_with_other_fields_survive_too(kind: str, part: Any) -> None:
    assert again(kind, part) == part


def test_a_job_with_all_of_it_survives() -> None:
    job = Job(
        FedAvg(mlp((3,)), batch=None, lr=Cosine(), server=Server(optimiser("adam", eps=1e-3), 0.1)),
        Oversample(Uniform(0.2), 1.5), Channel([Clip(1.0), Average()], Each(TrimmedMean(2))), 7,
        [Target(), Patience()], 3, Diurnal(), 'a "name"', [Recall(), AUC(32)],
    )  # fmt: skip
    data = {"use": "digits", "clients": 5, "pooled": {"clients": 9, "samples": 3}}
    said = from_table(tomllib.loads(dumps(to_table(job, data, 11))))
    assert said.job == job
    assert (dict(said.data), said.seed) == (data, 11)


def test_batch_none_is_all() -> None:
    assert table(FedAvg(softmax(), batch=None))["batch"] == "all"
    assert build("method", {"use": "fedavg", "model": "softmax", "batch": "all"}).batch is None


def test_whole_numbers_are_fine_where_numbers_are_asked_for() -> None:
    assert build("stage", {"use": "clip", "norm": 3}) == Clip(3.0)
    assert build("method", {"use": "fedavg", "model": "softmax", "lr": 1}).lr == 1.0


@pytest.mark.parametrize("lr", [np.float64(0.25), np.float32(0.25)])
def test_numbers_of_numpy_are_numbers(lr: Any) -> None:
    job = Job(FedAvg(softmax(), lr=lr, epochs=np.int64(2)), rounds=3)
    said = from_table(tomllib.loads(dumps(to_table(job, {"use": "digits"}, 0))))
    assert said.job.method == FedAvg(softmax(), lr=0.25, epochs=2)


@pytest.mark.parametrize("text", ["tab\t", "return\r", "bell\x07", "delete\x7f", "two\nlines", 'quote"', "back\\", "ü"])
def test_any_text_survives_toml(text: str) -> None:
    assert tomllib.loads(dumps({"x": text, "t": {"y": [text]}})) == {"x": text, "t": {"y": [text]}}


@pytest.mark.parametrize("key", ["plain", "with space", "dotted.key", "ü", 'quo"te'])
def test_any_key_survives_toml(key: str) -> None:
    assert tomllib.loads(dumps({"t": {key: 1}})) == {"t": {key: 1}}


@pytest.mark.parametrize(
    ("kind", "said", "words"),
    [
        (
            "method",
            {"use": "fedavgg", "model": "softmax"},
            "method: there is no method 'fedavgg'; did you mean 'fedavg'?",
        ),
        ("method", {"use": "fedavg", "model": "sofmax"}, "method.model: .*did you mean 'softmax'?"),
        ("method", {"use": "fedavg", "model": "softmax", "epoch": 1}, "method.epoch: .*did you mean 'epochs'?"),
        ("method", {"use": "fedavg"}, "method: fedavg needs 'model'"),
        ("method", {"model": "softmax"}, "method: say which part to use"),
        ("method", 3, "method: say which part to use"),
        ("method", {"use": "fedavg", "model": "softmax", "epochs": "many"}, "method.epochs = 'many'"),
        ("method", {"use": "fedavg", "model": "softmax", "epochs": 0}, "epochs=0"),
        ("method", {"use": "fedavg", "model": "softmax", "lr": "fast"}, "method.lr = 'fast'"),
        ("method", {"use": "fedavg", "model": "softmax", "lr": -1.0}, "lr=-1.0"),
        ("method", {"use": "fedavg", "model": "softmax", "lr": {"use": "cosin"}}, "did you mean 'cosine'?"),
        ("method", {"use": "fedavg", "model": "softmax", "optimiser": "adamm"}, "did you mean 'adam'?"),
        ("method", {"use": "fedavg", "model": "softmax", "optimiser": {"use": "adam", "beta": 1}}, "no option 'beta'"),
        ("method", {"use": "fedavg", "model": "softmax", "optimiser": 3}, "method.optimiser"),
        ("method", {"use": "fedavg", "model": "softmax", "server": 3}, "method.server"),
        ("method", {"use": "fedavg", "model": "softmax", "server": {"use": "sgd", "lr": "fast"}}, "method.server"),
        ("method", {"use": "fedavg", "model": 3}, "method.model"),
        ("method", {"use": "fedavg", "model": {"use": "mlp", "hidden": [0.5]}}, "method.model.hidden"),
        ("method", {"use": "fedavg", "model": {"use": "mlp", "backend": "jaxx"}}, "method.model.backend"),
        ("combine", {"use": "each", "rule": {"use": "trimmed_mean", "f": -1}}, "combine.rule: .*f=-1"),
        ("combine", {"use": "each", "rule": 3}, "combine.rule"),
        ("select", {"use": "oversample", "select": {"use": "uniform", "fraction": 2.0}}, "select.select: fraction=2.0"),
        ("stage", {"use": "weigh", "x": 1}, "stage.x: weigh has no such field"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(kind: str, said: Any, words: str) -> None:
    with pytest.raises(BadJob, match=words.replace("?", r"\?")):
        build(kind, said)


BASE = 'data = "digits"\nmethod = { use = "fedavg", model = "softmax" }\n'


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (BASE + "rounds = =\n", (), "line 3"),
        (BASE + "round = 3\n", (), "did you mean 'rounds'"),
        (BASE + "rounds = 0\n", (), "rounds must be at least 1, got 0"),
        (BASE + "rounds = 1.5\n", (), "rounds = 1.5"),
        (BASE + "seed = true\n", (), "seed"),
        ('data = "digits"\n', (), "'method' is missing"),
        (BASE, ("method.lr",), "key=value"),
        (BASE, ("stages.7.use=average",), "stages"),
        (BASE + "rounds = 3\n", ("rounds.x=3",), "rounds.x"),
        (BASE + 'select = { use = "uniform", fraction = 0.5 }\n', ("select.fraction.x=3",), "select.fraction.x"),
        (BASE, ("stages=3",), "stages"),
        (BASE, ("stop=3",), "stop"),
    ],
)
def test_a_job_file_that_cannot_be_is_refused(text: str, overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadJob, match=words) as raised:
        parse(text, "my.toml", overrides)
    if not overrides:
        assert str(raised.value).startswith("my.toml: ")


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("method.lr=0.05", lambda job: job.method.lr == 0.05),
        ("method.batch=all", lambda job: job.method.batch is None),
        ("method.model=mlp", lambda job: job.method.model == mlp()),
        ("method.model.use=mlp", lambda job: job.method.model == mlp()),
        ("stages.0.use=average", lambda job: job.channel.stages == (Average(),)),
        ("stages.0=average", lambda job: job.channel.stages == (Average(),)),
        ('stages=[{use="clip", norm=1.0}, "weigh"]', lambda job: job.channel.stages == (Clip(1.0), Weigh())),
        ("combine.use=sum", lambda job: job.channel.combine == Sum()),
        ("select.use=all", lambda job: job.select == All()),
        ("stop.use=converged", lambda job: job.stop == (Converged(),)),
        ("name=x=y", lambda job: job.name == "x=y"),
    ],
)
def test_an_override_reaches_any_key(override: str, found: Any) -> None:
    assert found(parse(BASE + 'stages = ["weigh"]\n', "my.toml", [override]).job)


def test_an_override_of_a_default_stage_works_though_the_file_does_not_name_it() -> None:
    assert parse(BASE, "my.toml", ["stages.0.use=average"]).job.channel.stages == (Average(),)
