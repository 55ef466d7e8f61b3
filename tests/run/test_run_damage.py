"""A disk that lies: whatever bit of a run folder flips, the run has the same bits, or a sentence names the file."""

from __future__ import annotations

import json
import random
import shutil
import stat
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run_parts import no_hang  # noqa: F401

from atoll.cli.report import report_run
from atoll.cli.run import Progress, _resumed
from atoll.cli.status import in_words, status
from atoll.core.effects import Note
from atoll.core.errors import AtollError
from atoll.data import Federated, build
from atoll.job.file import JobFile, parse
from atoll.journal import Damaged, Journal, Past, read
from atoll.journal.sealed import load, save, seal, unseal
from atoll.runtimes.folder import open_run
from atoll.runtimes.run import simulate
from damage import flip

TEXT = """
name = "small run"
rounds = 6
data = { use = "digits", clients = 20, by = "dirichlet", alpha = 0.3, test = 0.2 }
method = { use = "fedavg", model = "softmax" }
stages = [{ use = "weigh" }, { use = "top_k", fraction = 0.1 }]
"""
CLOCK = ("time", "seconds", "work", "compile")
Facts = list[dict[str, Any]]


class Cut(Exception):
    """The end of the world, in a sink."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that was cut in round 4, and the same one whole."""
    out, said = tmp_path_factory.mktemp("runs"), parse(TEXT, "small")
    data = build(said.data, said.seed)

    def cut(note: Note) -> None:
        if note.what == "round" and note.t == 4:
            raise Cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Journal.__init__.__kwdefaults__, "rest", 0.0)  # every round has a checkpoint
        with pytest.raises(Cut):
            simulate(said.job, data, out=out / "cut", workers=0, sinks=(cut,))
        whole = simulate(said.job, data, out=out / "whole", workers=0)
    whole.report(out / "whole" / "report.html")
    (half,) = (out / "cut").iterdir()
    assert whole.folder
    assert len(list((half / "checkpoints").iterdir())) == 2
    return {"cut": half, "whole": whole.folder}


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def plain(facts: Facts) -> Facts:
    """Leave out what a clock says, and where the run was resumed."""
    shown = (f for f in facts if f["what"] not in ("resume", "damaged"))
    return [{k: v for k, v in f.items() if k not in CLOCK} for f in shown]


def is_among(some: Facts, all_: Facts) -> bool:
    """Whether nothing is in `some` that is not in `all_`, in its order."""
    rest = iter(all_)
    return all(any(fact == other for other in rest) for fact in some)


def sentence_of(work: Callable[[], object], folder: Path) -> str:
    """Return the sentence that this ends with, if it does; it names the folder. Anything else is a traceback."""
    try:
        with warnings.catch_warnings(action="ignore"):
            work()
    except AtollError as error:
        said = str(error)
    else:
        return ""
    assert str(folder) in said, said
    return said


def goes_on(folder: Path, whole: Path) -> str:
    """Resume as `atoll run --resume` does; the same bits and no fact that is not so, or the sentence it ended with."""
    sentence_of(lambda: list(in_words(status(folder))), folder)
    sentence_of(lambda: open_run(folder), folder)
    if said := sentence_of(lambda: resume(folder), folder):
        return said
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert is_among(plain(read(folder).facts), plain(read(whole).facts))
    assert read(folder).facts[-1]["reason"] == "all 6 rounds done"
    return ""


def resume(folder: Path) -> None:
    said = _resumed(folder, [])
    assert isinstance(said, JobFile)
    progress = Progress(said.job.rounds)
    simulate(said.job, data_of(json.dumps(said.data)), said.seed, resume=folder, workers=0, sinks=(progress,))


@cache
def data_of(recipe: str) -> Federated:
    return build(json.loads(recipe), 0)


def flipped(runs: dict[str, Path], out: Path, seed: int, flips: int) -> dict[str, list[str]]:
    """Flip single bits in every file in turn, each in a fresh copy of a run; return the sentences by file."""
    chance, said = random.Random(seed), dict[str, list[str]]()
    every = [(kind, name) for kind in runs for name in files_of(runs[kind])]
    for k in range(flips):
        kind, name = every[k % len(every)]
        folder = Path(shutil.copytree(runs[kind], out / f"{k} {kind}"))
        flip(folder / name, chance)
        said.setdefault(name, []).append(goes_on(folder, runs["whole"]))
        shutil.rmtree(folder)
    return said


def only_the_format_is_a_matter_of_guessing(said: dict[str, list[str]]) -> None:
    for name, sentences in said.items():
        assert name == "format" or not any(sentences), (name, sentences)


def test_a_few_flipped_bits_are_noticed_and_the_run_has_the_same_bits(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = flipped(runs, tmp_path, 1, 14)
    assert len(said) >= 8
    only_the_format_is_a_matter_of_guessing(said)
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_flipped_bits(runs: dict[str, Path], tmp_path: Path, seed: int) -> None:
    only_the_format_is_a_matter_of_guessing(flipped(runs, tmp_path, 10 + seed, 25))


def hurt(path: Path, how: int, chance: random.Random) -> None:
    data = path.read_bytes()
    path.unlink()
    if how:
        path.write_bytes(data[: chance.randrange(len(data))] if how == 1 else bytes(len(data)))


@pytest.mark.parametrize(
    "turn", [0, pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly)]
)
def test_whatever_file_is_lost_cut_or_zeroed_the_run_goes_on(runs: dict[str, Path], tmp_path: Path, turn: int) -> None:
    for k, name in enumerate(files_of(runs["cut"])):
        folder = Path(shutil.copytree(runs["cut"], tmp_path / str(k)))
        hurt(folder / name, (k + turn) % 3, random.Random(k))
        said = goes_on(folder, runs["whole"])
        assert not said or name == "format", said


# --- what is said, and what is taken instead ------------------------------------------------------------------------


@pytest.fixture
def folder(runs: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs["cut"], tmp_path / "run"))


def test_every_bit_of_a_checkpoint_is_covered(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save(path, {"state": {"w": np.arange(3, dtype=np.float32), "none": np.zeros((0, 2))}, "t": 3})
    assert int(load(path)["t"]) == 3
    data = path.read_bytes()
    for at in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        path.write_bytes(wrong)
        try:
            found = load(path)
        except Damaged:
            continue
        path.write_bytes(data)
        assert json.dumps(_lists(found)) == json.dumps(_lists(load(path))), "at most padding was hit"


def _lists(tree: Any) -> Any:
    return {k: _lists(v) for k, v in tree.items()} if isinstance(tree, dict) else [str(tree.dtype), tree.tolist()]


def test_every_bit_of_a_fact_is_covered() -> None:
    fact = {"what": "round", "round": 3, "loss": 0.25, "name": "Ærø"}
    line = seal(fact).encode()
    assert unseal(line) == fact
    assert json.loads(line)["loss"] == 0.25, "a fact is a line of JSON to everybody else"
    for at in range(8 * len(line)):
        wrong = bytearray(line)
        wrong[at // 8] ^= 1 << at % 8
        assert unseal(bytes(wrong)) is None


def test_of_two_checkpoints_the_whole_one_is_taken_and_the_other_named(folder: Path) -> None:
    older, newest = sorted((folder / "checkpoints").iterdir())
    flip(newest, random.Random(0))
    past = read(folder).past()
    assert past.memory is not None
    assert int(past.memory["t"]) == int(older.stem)
    assert past.damaged == (f"{newest} is damaged: it is not what was written",)


def test_a_simulation_without_a_whole_checkpoint_says_so_and_begins_again(
    folder: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (folder / "checkpoints").iterdir():
        flip(path, random.Random(0))
    assert not goes_on(folder, runs["whole"])
    assert capsys.readouterr().err.count("is damaged") >= 2


def test_a_changed_job_is_put_back_as_the_run_began(folder: Path, runs: dict[str, Path]) -> None:
    """A flipped bit that leaves a valid job would train another one."""
    path = folder / "job.toml"
    text = path.read_text()
    assert "rounds = 6" in text
    path.write_text(text.replace("rounds = 6", "rounds = 7"))
    assert "is another job than the run began with: the job is taken from the facts" in read(folder).damaged[0]
    assert not goes_on(folder, runs["whole"])
    assert path.read_text() == text
    assert "rounds = 7" in (folder / "job.toml.damaged").read_text()


def test_without_its_first_fact_a_run_still_has_a_report(folder: Path, runs: dict[str, Path]) -> None:
    path = folder / "facts.jsonl"
    path.write_bytes(b"#" + path.read_bytes()[1:])
    assert read(folder).damaged == (f"{path}: line 1 is damaged and left out",)
    with pytest.raises(AtollError, match=r"has no start .*line 1 is damaged.*resume the run"):
        report_run(folder)
    assert not goes_on(folder, runs["whole"])
    report_run(folder)
    assert plain(read(folder).facts) == plain(read(runs["whole"]).facts)


def test_a_run_folder_is_its_owners_alone(runs: dict[str, Path]) -> None:
    for folder in runs.values():
        assert modes(folder) == {0o600, 0o700}


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")] if path.name != "report.html"}


def test_a_server_refuses_to_begin_again_what_was_done(folder: Path) -> None:
    from atoll.runtimes.network.server.serve import kept

    text = (folder / "job.toml").read_text()
    assert kept(folder, text).rounds == 3
    for path in (folder / "checkpoints").iterdir():
        flip(path, random.Random(0))
    with pytest.raises(
        Damaged, match=r"has done round 4 at least, and no checkpoint is whole \(.*00000003.* is damaged"
    ):
        kept(folder, text)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(Damaged, match="checkpoints is empty"):
        kept(folder, text)
    (folder / "facts.jsonl").unlink()
    assert kept(folder, text) == Past()  # nothing is left that says otherwise
