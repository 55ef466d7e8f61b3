"""Run folders say their format; those of release 0.1 are read in today's words, and never resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from atoll.core.wire import Mismatch
from atoll.data import build
from atoll.job.catalogue import BadJob
from atoll.job.file import from_table
from atoll.job.job import Job
from atoll.journal import read, reopen, rounds_done
from atoll.journal.read import FORMAT, NoRun, OtherFormat
from atoll.methods import FedAvg
from atoll.models import softmax
from atoll.report.page import write
from atoll.runtimes.folder import open_run
from atoll.runtimes.run import curve, simulate

RELEASE = Path(__file__).parents[1] / "golden" / "release_0_1"
LAST = {"test": 0.5348189415041783, "local": 0.5532646048109966}  # accuracies that release 0.1 noted


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run folder as release 0.1 wrote it: the default job, three rounds."""
    return Path(shutil.copytree(RELEASE / "run", tmp_path / "old"))


def test_new_runs_write_their_format(tmp_path: Path) -> None:
    recipe = {"use": "digits", "clients": 4}
    run = simulate(Job(FedAvg(softmax()), rounds=1), build(recipe), out=tmp_path, workers=0)
    assert run.folder
    assert (run.folder / "format").read_text() == f"{FORMAT}\n"
    assert reopen(run.folder).format == FORMAT == 2


def test_a_folder_of_the_release_is_read_in_todays_words(old: Path) -> None:
    record = read(old)
    assert record.format == 1
    assert record.job["eval_every"] == 1
    assert "every" not in record.job
    assert record.facts[0]["job"] == record.job
    for split, accuracy in LAST.items():
        rounds, values = curve(record.facts, f"{split}.accuracy")
        assert rounds == [0, 1, 2, 3]
        assert values[-1] == accuracy
    assert all(norm > 0.5 for norm in curve(record.facts, "update_norm")[1])
    words = json.dumps(record.facts)
    assert not any(f'"{word}"' in words for word in ("look", "room", "own", "moved", "every"))


@pytest.mark.parametrize("kind", ["run", "served"])
def test_a_folder_of_the_release_is_reported(tmp_path: Path, kind: str) -> None:
    record = read(RELEASE / kind)
    about = next(fact for fact in record.facts if fact["what"] == "start")
    page = write(tmp_path / "report.html", about, record.facts).read_text()
    assert "Accuracy" in page
    assert "all 3 rounds done" in page if kind == "run" else "all 2 rounds done" in page
    assert ("simulat" in page) == (kind == "run")


def test_the_model_of_a_folder_of_the_release_predicts_as_it_did(old: Path) -> None:
    run = open_run(old)
    assert run.reason == "all 3 rounds done"
    assert run.curve("local.accuracy")[1][-1] == LAST["local"]
    saved = load_file(old / "model.safetensors")
    assert run.params.keys() == saved.keys()
    assert all(np.array_equal(run.params[name], leaf) for name, leaf in saved.items())
    said = from_table(read(old).job)
    data = build(said.data, said.seed)
    for silos, accuracy in ((data.test, LAST["test"]), (data.local, LAST["local"])):
        assert silos is not None
        x, y = (np.concatenate(rows) for rows in zip(*silos, strict=True))
        assert (run.predict(x).argmax(axis=1) == y).mean() == pytest.approx(accuracy, abs=0.003)


def test_an_opened_run_predicts_as_the_one_that_wrote_the_folder(tmp_path: Path) -> None:
    data = build({"use": "digits", "clients": 4})
    run = simulate(Job(FedAvg(softmax()), rounds=2), data, out=tmp_path, workers=0)
    assert run.folder
    x = np.concatenate([x for x, _ in data.train])
    for opened in (open_run(run.folder), open_run(run.folder, data)):
        assert np.array_equal(opened.predict(x), run.predict(x))
        assert opened.facts[-1] == run.facts[-1]
    shutil.rmtree(run.folder / "checkpoints")
    with pytest.raises(NoRun, match=r"holds no whole checkpoint: run its job\.toml again"):
        open_run(run.folder)
    with pytest.raises(NoRun, match="is no run folder"):
        open_run(tmp_path)


def test_a_folder_of_a_program_with_roles_has_no_single_model(old: Path) -> None:
    (old / "job.toml").write_text('program = { use = "joint_moments" }\n[roles]\nA = "ada"\nB = "ben"\nC = "cleo"\n')
    with pytest.raises(NoRun, match=r"a program with roles: each role has a model of its own, in model-ROLE\.safet"):
        open_run(old)


def test_a_run_of_the_release_is_not_resumed(old: Path) -> None:
    sentence = "holds a run of release 0.1, which this release cannot resume: atoll report .* shows it, or start"
    with pytest.raises(OtherFormat, match=sentence):
        reopen(old)
    said = from_table(read(old).job)
    before = sorted((p.name, p.stat().st_size) for p in old.rglob("*"))
    with pytest.raises(OtherFormat, match=sentence):
        simulate(said.job, build(said.data, said.seed), said.seed, resume=old, workers=0)
    assert sorted((p.name, p.stat().st_size) for p in old.rglob("*")) == before


def test_a_served_run_of_the_release_is_not_gone_on_with(tmp_path: Path) -> None:
    from atoll.runtimes.network.server.serve import serve

    folder = Path(shutil.copytree(RELEASE / "served", tmp_path / "served"))
    said = from_table(read(folder).job)
    with pytest.raises(OtherFormat, match=r"release 0\.1, which this release cannot resume"):
        serve(said.job, build(said.data, said.seed), said.seed, address="127.0.0.1:0", credentials=None,
              roster=lambda: {"ada": "k"}, folder=folder)  # fmt: skip
    assert not (folder / "format").exists()


def test_served_runs_write_their_format(tmp_path: Path) -> None:
    from atoll.runtimes.network.server.serve import kept

    assert kept(tmp_path, 'name = "x"\n').memory is None
    assert (tmp_path / "format").read_text() == "2\n"
    assert kept(tmp_path, 'name = "x"\n').memory is None
    with pytest.raises(Mismatch, match="a run of another job"):
        kept(tmp_path, 'name = "y"\n')


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("3\n", r"has format 3, and this release reads up to 2: upgrade with pip install --upgrade atoll"),
        ("12", r"has format 12, and this release reads up to 2"),
        ("two", r"format says 'two' and not a format number"),
        ("", r"format says '' and not a format number"),
        ("0", r"format says '0' and not a format number"),
        ("-1", r"format says '-1' and not a format number"),
        ("²", r"format says '²' and not a format number"),
    ],
)
def test_formats_of_nobody_and_of_newer_releases_are_refused(old: Path, text: str, sentence: str) -> None:
    (old / "format").write_text(text, encoding="utf-8")
    for how in (read, reopen):
        with pytest.raises(OtherFormat, match=sentence):
            how(old)


def test_a_model_of_the_release_predicts_though_its_channel_is_refused_now(old: Path) -> None:
    """Release 0.1 took a LightSum whose halves could be told of two sums, and wrote it into the folder."""
    path = old / "job.toml"
    light = '{ use = "light_sum", privacy = 0.5, target = 0.7 }'
    path.write_text(path.read_text().replace('combine = { use = "sum" }', f"combine = {light}"))
    with pytest.raises(BadJob, match=r"target above 0\.75"):
        from_table(read(old).job)
    assert open_run(old).params.keys() == load_file(old / "model.safetensors").keys()


def test_a_round_that_is_not_complete_is_not_counted_as_done() -> None:
    facts = [{"what": "round", "round": 1}, {"what": "round", "round": 2, "complete": False}]
    assert [rounds_done(facts[:k]) for k in range(3)] == [0, 1, 1]
    assert rounds_done([*facts, {"what": "round", "round": 2}, {"what": "end", "round": 2, "complete": False}]) == 2
