"""Sinks: what TensorBoard and MLflow read back is what was noted."""

import builtins

import pytest

from atoll.core.effects import Note
from atoll.journal import Journal
from atoll.journal.sinks import mlflow, scalars, tensorboard


def notes(facts):
    return [Note(f["what"], {k: v for k, v in f.items() if k not in ("what", "time")}) for f in facts]


def expected(facts):
    found = {}
    for note in notes(facts):
        for name, value in scalars(note):
            found.setdefault(name, []).append((note.facts["round"], value))
    return found


def test_names_are_those_of_a_runs_curves(run):
    from atoll.runtimes.run import curve

    _, facts = run
    found = expected(facts)
    for name in ("test.accuracy", "test.loss", "local.accuracy.worst10", "bytes_up", "seconds", "update_norm"):
        t, v = curve(facts, name)
        assert found[name] == list(zip(t, v, strict=True))


def test_tensorboard_reads_back_what_was_noted(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, facts = run
    sink = tensorboard(tmp_path / "tb")
    journal = Journal(sinks=(sink,))
    for note in notes(facts):
        journal.note(note)
    sink.close()
    seen = EventAccumulator(str(tmp_path / "tb"), size_guidance={"scalars": 0})
    seen.Reload()
    wanted = expected(facts)
    assert set(seen.Tags()["scalars"]) == set(wanted)
    for name, curve in wanted.items():
        got = seen.Scalars(name)
        assert [e.step for e in got] == [t for t, _ in curve]
        assert [e.value for e in got] == pytest.approx([v for _, v in curve], rel=1e-6)
    assert b'"name": "digits"' in seen.Tensors("job")[0].tensor_proto.string_val[0]


def test_tensorboard_drops_what_a_resumed_run_does_again(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = tensorboard(tmp_path)
    for t, value in ((1, 0.1), (2, 0.2), (3, 0.3)):
        sink(Note("round", {"round": t, "update_norm": value}))
    sink(Note("resume", {"round": 1}))
    sink(Note("round", {"round": 2, "update_norm": 0.25}))
    sink.close()
    seen = EventAccumulator(str(tmp_path))
    seen.Reload()
    assert [(e.step, round(e.value, 4)) for e in seen.Scalars("update_norm")] == [(1, 0.1), (2, 0.25)]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return (tmp_path / "mlruns").as_uri()


def test_mlflow_reads_back_what_was_noted(run, store):
    from mlflow import MlflowClient

    _, facts = run
    sink = mlflow("atoll", store)
    sink(Note("in process", {"why": "before the start"}))
    for note in notes(facts):
        sink(note)
    sink.close()
    client = MlflowClient(store)
    (seen,) = client.search_runs([client.get_experiment_by_name("atoll").experiment_id])
    assert seen.info.run_id == sink.run
    assert (seen.info.status, seen.info.run_name) == ("FINISHED", "digits")
    assert seen.data.params["method.use"] == "fedavg"
    assert seen.data.tags["reason"] == "all 4 rounds done"
    for name, curve in expected(facts).items():
        assert sorted((m.step, m.value) for m in client.get_metric_history(sink.run, name)) == curve


def test_mlflow_ends_a_run_that_noted_no_end_and_takes_another(run, store):
    from mlflow import MlflowClient

    _, facts = run
    sink = mlflow("atoll", store)
    for note in notes(facts)[:4]:
        sink(note)
    first = sink.run
    sink(Note("resume", {"round": 1}))
    assert MlflowClient(store).get_run(first).info.status == "KILLED"
    sink.close()
    again = MlflowClient(store).get_run(sink.run)
    assert (again.info.status, again.data.tags["resumed after round"]) == ("KILLED", "1")


def test_mlflow_without_a_place_to_log_to_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with pytest.raises(ValueError, match="cannot log to nowhere://x; name a tracking server"):
        mlflow("atoll", "nowhere://x")


@pytest.mark.parametrize(("make", "package"), [(tensorboard, "tensorboard"), (mlflow, "mlflow")])
def test_a_missing_package_is_named_with_its_remedy(make, package, monkeypatch, tmp_path):
    there = builtins.__import__

    def absent(name, *rest, **more):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return there(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=rf"pip install 'atoll\[{package}\]'"):
        make(str(tmp_path))


def test_a_simulation_feeds_a_sink(tmp_path):
    import atoll

    data = atoll.data.build({"use": "digits", "clients": 3, "by": "iid"}, 0)
    seen = []
    sink = tensorboard(tmp_path / "tb")
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), select=atoll.All(), rounds=2)
    run = atoll.simulate(job, data, workers=0, sinks=(sink, seen.append))
    sink.close()
    assert [n.what for n in seen] == [f["what"] for f in run.facts]
    assert len(list((tmp_path / "tb").iterdir())) == 1
