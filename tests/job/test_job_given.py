"""A slip in a Python call is refused in one sentence that shows the right call."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError
from atoll.core.method import Select


def method() -> atoll.FedAvg:
    return atoll.FedAvg(atoll.models.softmax())


def federation() -> atoll.Federated:
    return atoll.data.load("digits").split(4, seed=0)


def job(**channel: Any) -> atoll.Job:
    return atoll.Job(method(), channel=atoll.Channel(**channel))


def simulated(**given: Any) -> object:
    return atoll.simulate(atoll.Job(method()), federation(), **given)


def run() -> atoll.Run:
    """A run of one round, as far as its curves and its report need one."""
    return atoll.Run(atoll.Job(method()), {}, [{"what": "round", "round": 1, "bytes_up": 8}])


def roles() -> atoll.RoleJob:
    return atoll.RoleJob(atoll.JointMoments(), {"A": "bank", "B": "shop", "C": "notary"})


class Anything:
    """As a table of another library is."""

    def __getattr__(self, name: str) -> object:
        return None


class Old:
    """A method as release 0.1 had them."""

    def share(self, state: object) -> object: ...
    def task(self, share: object, group: object) -> object: ...


SLIPS: dict[str, tuple[Callable[[], object], str]] = {
    "a model by its name": (lambda: atoll.FedAvg("softmax"), r"atoll\.models\.softmax\(\)"),
    "a model that is not made": (lambda: atoll.FedAvg(atoll.models.softmax), "call it"),
    "rounds as text": (lambda: atoll.Job(method(), rounds="3"), "rounds must be a whole number, got '3'"),
    "no rounds": (lambda: atoll.Job(method(), rounds=-1), "rounds must be at least 1, got -1"),
    "a stop without a list": (lambda: atoll.Job(method(), stop=atoll.Target()), r"stop=\["),
    "a class": (lambda: atoll.Job(method(), select=atoll.Uniform), r"the class Uniform: make a part of it"),
    "a method's class": (lambda: atoll.Job(atoll.FedAvg), "the class FedAvg"),
    "a list as channel": (lambda: atoll.Job(method(), channel=[atoll.Weigh()]), r"channel=atoll\.Channel\("),
    "a stage without a list": (lambda: atoll.Channel(atoll.Weigh()), r"stages=\[atoll\.Weigh\(\)\]"),
    "a table that is not split": (lambda: atoll.simulate(atoll.Job(method()), atoll.data.load("digits")), "split it"),
    "nothing as a model": (lambda: atoll.FedAvg(None), r"model must be a part such as atoll\.models\.softmax\(\)"),
    "epochs that are not whole": (
        lambda: atoll.FedAvg(atoll.models.softmax(), epochs=1.5),
        "epochs must be a whole number, got 1.5",
    ),
    "an optimiser by its name": (
        lambda: atoll.FedAvg(atoll.models.softmax(), optimiser="adam"),
        r'optimiser must be a part such as atoll\.optimiser\("adam"\)',
    ),
    "an old field of a method": (
        lambda: atoll.FedAvg(atoll.models.softmax(), private=None),
        "no field 'private': it is called 'example_dp' now",
    ),
    "an old field of a job": (lambda: atoll.Job(method(), every=2), "it is called 'eval_every' now"),
    "an old field of a combine": (lambda: atoll.SecureSum(least=3), "it is called 'min_parties' now"),
    "an old field of a stop": (lambda: atoll.Patience(least=0.1), "it is called 'min_delta' now"),
    "an old metric": (
        lambda: atoll.simulate(atoll.Job(method(), stop=[atoll.Target("own.accuracy", 0.9)]), federation()),
        "'own.accuracy' is called 'local.accuracy' now",
    ),
    "a field that there is not": (
        lambda: atoll.FedAvg(atoll.models.softmax(), batch_size=10),
        "no field 'batch_size': did you mean 'batch'",
    ),
    "a method by its name": (lambda: atoll.Job("fedavg"), r"method must be a part such as atoll\.FedAvg"),
    "a model as method": (lambda: atoll.Job(atoll.models.softmax()), r"method must be a part such as atoll\.FedAvg"),
    "something that answers to any name": (lambda: atoll.Job(Anything()), "method must be a part such as"),
    "a method of release 0.1": (lambda: atoll.Job(Old()), "'share' of Old is called 'broadcast' now"),
    "a select by its name": (lambda: atoll.Job(method(), select="uniform"), r"atoll\.Uniform\(0\.1\)"),
    "a number as select": (lambda: atoll.Job(method(), select=0.1), r"atoll\.Uniform\(0\.1\)"),
    "a fraction as text": (lambda: atoll.Uniform("0.1"), "fraction must be a number, got '0.1'"),
    "a select's class inside": (lambda: atoll.Oversample(atoll.Uniform), "select is the class Uniform"),
    "a rule by its name": (lambda: atoll.Each("median"), r"rule must be a part such as atoll\.Median\(\)"),
    "a function as rule": (lambda: atoll.Each(np.median), r"rule must be a part such as atoll\.Median\(\)"),
    "a rule as combine": (
        lambda: atoll.Channel([atoll.Average()], atoll.Median()),
        r"combine must be a part such as .* or atoll\.Each\(atoll\.Median\(\)\), got Median\(\)",
    ),
    "a combine among stages": (lambda: atoll.Channel([atoll.Sum()]), r"stages\[0\] must be a part such as"),
    "stages and combine swapped": (lambda: atoll.Channel(atoll.Sum(), [atoll.Weigh()]), "combine must be a part"),
    "no stages": (lambda: atoll.Channel(None), r"stages must be a list such as \[atoll\.Weigh\(\)\], got None"),
    "a function as stage": (lambda: atoll.simulate(job(stages=[lambda wire: wire]), federation()), "is no stage"),
    "phases as a list": (lambda: atoll.Channel(phases=[1]), "channels by the names of phases"),
    "a combine as the channel of a phase": (lambda: atoll.Channel(phases={"train": atoll.Sum()}), "must be a channel"),
    "a phase that there is not": (
        lambda: atoll.simulate(job(phases={"trian": atoll.Channel()}), federation()),
        "phases.trian: FedAvg has no such phase; did you mean 'train'",
    ),
    "a metric's class": (lambda: atoll.Job(method(), metrics=[atoll.metrics.AUC]), "the class AUC"),
    "availability by its name": (lambda: atoll.Job(method(), availability="flaky"), r"atoll\.Flaky\(0\.9\)"),
    "a name that is a path": (lambda: atoll.Job(method(), name="../x"), "without slashes"),
    "a number as name": (lambda: atoll.Job(method(), name=3), "name must be text, got 3"),
    "a target's fields swapped": (lambda: atoll.Target(0.9, "test.accuracy"), "metric must be text, got 0.9"),
    "a target of nothing": (lambda: atoll.Target("test.accuracy", float("nan")), "a finite number"),
    "no patience": (lambda: atoll.Patience(rounds=0), "rounds must be at least 1, got 0"),
    "a time below zero": (lambda: atoll.WallTime(-1), "a time is above 0"),
    "a dict as job": (
        lambda: atoll.simulate({"rounds": 3}, federation()),
        r"is a dict, and an atoll\.Job is needed",
    ),
    "a method as job": (lambda: atoll.simulate(method(), federation()), r"make one, atoll\.Job\("),
    "job and data swapped": (lambda: atoll.explain(federation(), atoll.Job(method())), r"an atoll\.Job is needed"),
    "the path of data": (lambda: atoll.simulate(atoll.Job(method()), "data.csv"), r"atoll\.data\.load\("),
    "a table to explain": (lambda: atoll.explain(atoll.Job(method()), atoll.data.load("digits")), "split it"),
    "a seed as text": (lambda: atoll.simulate(atoll.Job(method()), federation(), seed="0"), "seed must be a whole"),
    "a folder that is no run": (
        lambda: atoll.simulate(atoll.Job(method()), federation(), resume="nowhere"),
        "nowhere is no run folder",
    ),
    "a norm as text": (lambda: atoll.Clip("1"), "Clip: norm must be a number, got '1'"),
    "an old field of a stage": (lambda: atoll.Weigh(most=3), "it is called 'max_weight' now"),
    "a rate as text": (lambda: atoll.FedAvg(atoll.models.softmax(), lr="0.1"), r"lr must be a number or .*Cosine\("),
    "workers as text": (lambda: simulated(workers="2"), "workers must be a whole number, got '2'"),
    "a worker and a half": (lambda: simulated(workers=1.5), "workers must be a whole number, got 1.5"),
    "fewer workers than none": (lambda: simulated(workers=-1), "workers must be at least 0, got -1"),
    "a number as folder": (lambda: simulated(out=3), "out must be the path of a folder, got 3"),
    "a number as run": (lambda: simulated(resume=3), "resume must be the path of a folder, got 3"),
    "a function as sinks": (lambda: simulated(sinks=print), r"write sinks=\[print\]"),
    "sinks that are no functions": (lambda: simulated(sinks=[3]), r"write sinks=\[print\], got \[3\]"),
    "a switch as text": (lambda: simulated(protocols="yes"), "protocols must be True or False, got 'yes'"),
    "actors as text": (lambda: atoll.on_ray(atoll.Job(method()), federation(), workers="2"), "workers must be a whole"),
    "a number as cluster": (lambda: atoll.on_ray(atoll.Job(method()), federation(), address=3), "address must be text"),
    "a number as folder of roles": (lambda: atoll.simulate_roles(roles(), {}, out=3), "out must be the path"),
    "roles without data": (lambda: atoll.simulate(roles(), None), r"run it with atoll\.simulate_roles\(job\)"),
    "roles with data": (lambda: atoll.simulate(roles(), federation()), r"run it with atoll\.simulate_roles\(job\)"),
    "roles on a cluster": (lambda: atoll.on_ray(roles(), federation()), r"run it with atoll\.simulate_roles\(job\)"),
    "roles to explain": (lambda: atoll.explain(roles(), federation()), "explain its file with `atoll explain`"),
    "a state without params": (lambda: atoll.Run(atoll.Job(method()), {}, []).vector, "FedAvg has no params"),
    "a split's seed as text": (lambda: atoll.data.load("digits").split(4, seed="0"), "give a whole number"),
    "a holdout's seed as text": (lambda: atoll.data.load("digits").holdout(0.2, seed="0"), "give a whole number"),
    "an old option of a split": (
        lambda: atoll.data.load("digits").split(4, "dirichlet", seed=0, least=3),
        "'least': it is called 'min_samples' now",
    ),
    "an old option of a recipe": (
        lambda: atoll.data.build({"use": "digits", "clients": 4, "by": "power", "least": 3}),
        "'least': it is called 'min_samples' now",
    ),
    "the class of a job": (lambda: atoll.simulate(atoll.Job, federation()), "job is the class Job: call it"),
    "a table to compare": (lambda: atoll.compare(atoll.Job(method()), atoll.data.load("digits")), "split it first"),
    "a name to compare": (lambda: atoll.compare("job", federation()), r"an atoll\.Job is needed"),
    "a name to calibrate": (lambda: atoll.calibrate("job", federation(), epsilon=1), r"an atoll\.Job is needed"),
    "a table to calibrate": (lambda: atoll.calibrate(atoll.Job(method()), atoll.data.load("digits"), 1), "split it"),
    "a budget as text": (lambda: atoll.calibrate(atoll.Job(method()), federation(), "1"), "epsilon must be a number"),
    "a metric's field as text": (lambda: atoll.metrics.TopKAccuracy("5"), "k must be a whole number, got '5'"),
    "bins as text": (lambda: atoll.metrics.AUC("9"), "AUC: bins must be a whole number, got '9'"),
    "a type that there is not": (lambda: atoll.models.softmax(dtype="float8"), "dtype must be 'float32' or 'float64'"),
    "a backend that there is not": (lambda: atoll.models.softmax(backend="tf"), "backend must be 'jax' or 'torch'"),
    "nothing as a run": (lambda: atoll.open_run(None), "folder must be the path of a folder, got None"),
    "a run with a table": (lambda: atoll.open_run("nowhere", atoll.data.load("digits")), "split it first"),
    "a number as report": (lambda: run().report(3), r'a file, as in "report\.html", got 3'),
    "a folder as report": (lambda: run().report("/"), r"/ is a folder: name a file in it, as in /report\.html"),
    "a report below a file": (
        lambda: run().report(Path(__file__) / "x" / "y.html"),
        "cannot write to .*choose another folder",
    ),
    "no metric": (lambda: run().curve(None), 'metric must be a name such as "test.accuracy", got None'),
    "a metric that there is not": (lambda: run().curve("bytes_ub"), "^no metric 'bytes_ub' .* mean 'bytes_up'"),
    "rows of many lengths": (lambda: run().predict([[1, 2], [1]]), "x is a list, and an array of rows, all of one"),
    "nothing to predict": (lambda: run().predict(None), "x is a NoneType, and an array of rows"),
    "a text to predict": (lambda: run().predict("x"), "x is a str, and an array of rows"),
    "a table to predict": (lambda: run().predict(atoll.data.load("digits")), r"x is a Table, .* such as data\.test\.x"),
    "a loop with workers": (lambda: simulated(loop=True, workers=2), "leave out workers=2"),
    "bits of no key": (lambda: atoll.JointMoments(bits=5), "a Paillier key has 2048 bits, or 3072"),
    "a clip below zero": (lambda: atoll.ExampleDP(-1.0, 1.0), "a clip is a positive number"),
    "a program by its name": (lambda: atoll.RoleJob("joint_moments", {}), r"program must be a part such as"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_refused_with_the_right_call(slip: str) -> None:
    call, words = SLIPS[slip]
    with pytest.raises(AtollError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_rows_of_another_shape_are_not_predicted() -> None:
    data = atoll.data.load("digits").split(4, seed=0)
    run = atoll.simulate(atoll.Job(method(), atoll.All(), rounds=1), data, workers=0)
    with pytest.raises(AtollError, match=r"rows have shape \(3,\), and the model was trained on \(64,\)"):
        run.predict(np.zeros((2, 3)))
    with pytest.raises(AtollError, match=r"one row of shape \(64,\) is given: put it into a list"):
        run.predict(np.zeros(64))


def test_whole_numbers_of_numpy_are_taken_as_python_s() -> None:
    two = np.int64(2)
    job = atoll.Job(method(), atoll.All(), rounds=two, eval_every=two, min_parties=two, extra_answers=two)
    assert [type(n) for n in (job.rounds, job.eval_every, job.min_parties, job.extra_answers)] == [int] * 4
    run = atoll.simulate(job, federation(), seed=two, workers=np.int64(0))
    assert (run.vector == atoll.simulate(replace(job, rounds=2), federation(), seed=2, workers=0).vector).all()
    assert type(run.about["job"]["seed"]) is int
    assert type(replace(roles(), seed=two, rounds=two).seed) is int
    with pytest.raises(AtollError, match="rounds must be a whole number, got True"):
        atoll.Job(method(), rounds=True)


def test_who_catches_a_key_error_of_a_curve_still_does() -> None:
    with pytest.raises(KeyError):
        run().curve("typo")


class Frame:
    """The surface of a pandas DataFrame: named columns, an array on request, no rows by number."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(np.column_stack(list(self._columns.values())), dtype)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __iter__(self) -> Any:
        return iter(self._columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


@pytest.fixture(params=["the surface of one", "pandas"])
def frame(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """How to make a DataFrame of columns."""
    return pytest.importorskip("pandas").DataFrame if request.param == "pandas" else Frame  # type: ignore[no-any-return]


def test_a_table_of_another_library_is_taken_as_arrays_or_refused_in_a_sentence(frame: Callable[..., Any]) -> None:
    y = np.arange(40) % 2
    numbers = frame({"age": np.linspace(-1, 1, 40), "sex": y})
    texts = frame({"age": np.linspace(-1, 1, 40).astype(object), "city": np.array(["x", "y"] * 20, object)})
    run = atoll.simulate(
        atoll.Job(method(), atoll.All(), rounds=1), atoll.data.from_arrays(numbers, y).split(2), workers=0
    )
    assert run.predict(numbers).shape == (40, 2)
    slips: dict[str, Callable[[], object]] = {
        "a federation of parties is needed": lambda: atoll.simulate(atoll.Job(method()), numbers),
        "is no model": lambda: atoll.FedAvg(numbers),
        "x holds object, not numbers": lambda: atoll.data.from_arrays(texts, y),
        r"give a pair of arrays \(x, y\)$": lambda: atoll.data.from_arrays(numbers, y, test=numbers),
        "party 0 is a .*Frame: give a pair": lambda: atoll.data.federate([numbers, numbers]),
        "give a list with a pair": lambda: atoll.data.federate(numbers),
        "rows hold object, not numbers": lambda: run.predict(texts),
        r"rows have shape \(1,\), and the model was trained on \(2,\)": lambda: run.predict(frame({"age": y})),
    }
    for words, call in slips.items():
        with pytest.raises(AtollError, match=words) as refused:
            call()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("old", "now"), [
    ("Over", "Oversample"), ("InTurn", "RoundRobin"), ("Still", "Converged"), ("Tree", "TreeNoise"),
    ("Server", "ServerOptimiser"),
])  # fmt: skip
def test_an_old_public_name_is_refused_with_the_new_one(old: str, now: str) -> None:
    with pytest.raises(AttributeError, match=f"'{old}': it is called '{now}' now"):
        getattr(atoll, old)
    assert now in atoll.__all__


def test_parts_are_checked_when_made_and_not_when_copied() -> None:
    part = atoll.Oversample(atoll.Uniform(np.float64(0.5)), 2)  # numbers of NumPy's, and whole ones for real ones
    assert pickle.loads(pickle.dumps(part)) == deepcopy(part) == part


def test_a_part_of_one_s_own_is_checked_by_its_hints() -> None:
    @dataclass(frozen=True)
    class Own(Select):
        number: int
        mode: Literal["a", "b"] = "a"
        names: tuple[str, ...] = ()
        other: object = None

        def expected(self, parties: int) -> int:
            return self.number

    assert Own(3, "b", ["x"], atoll.Uniform).expected(9) == 3
    for wrong in ({"number": "3"}, {"number": 3, "mode": "c"}, {"number": 3, "names": "xyz"}, {"nmber": 3}):
        with pytest.raises(AtollError, match=r"Own: \w+ must be|Own has no field"):
            Own(**wrong)


def test_data_that_a_model_is_not_for_is_refused_in_a_sentence() -> None:
    table = atoll.data.load("breast_cancer").split(4, seed=0)
    with pytest.raises(AtollError, match="30 features are no square image"):
        atoll.simulate(atoll.Job(atoll.FedAvg(atoll.models.cnn())), table)


def test_sums_of_a_metric_may_be_below_zero_and_above_any_count() -> None:
    data = atoll.data.build({"use": "diabetes", "clients": 3, "test": 0.2}, 0)
    job = atoll.Job(atoll.FedAvg(atoll.models.linear()), metrics=[atoll.metrics.R2()])
    sums = atoll.assemble(job, data).questions(3)["evaluate/local"].answers.leaves
    assert sums["r2/y"].range is None
    assert sums["r2/yy"].range is None
    assert sums["n"].range is not None
