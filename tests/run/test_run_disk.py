"""What a run does when it cannot write, and when it diverges: one sentence, and what was kept before is whole."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_run_parts import ATOLL, SOFT, no_hang, rounds_of  # noqa: F401

import spawn
from atoll.data import build
from atoll.job.file import parse
from atoll.journal import read
from atoll.runtimes.run import simulate

SHORT = SOFT.replace("rounds = 400", "rounds = 150")


def atoll(cwd: Path, *args: str, limit: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `atoll`; with a limit no file it writes may become larger."""
    python, c, code = ATOLL
    lower = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));" if limit else ""
    command = [python, c, f"{lower} {code}".strip(), *args]
    return spawn.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of an error: no traceback, nothing on stdout."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("atoll: ")]
    assert len(said) == 1
    return said[0]


def whole_checkpoints(folder: Path) -> int:
    paths = sorted((folder / "checkpoints").glob("*.safetensors"))
    for path in paths:
        assert all(np.isfinite(leaf).all() for leaf in load_file(path).values())
    assert not list(folder.rglob("*.part"))
    return len(paths)


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "soft.toml").write_text(SHORT)
    return "soft.toml"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    size = "size=64k"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", where], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield where
    subprocess.run(["umount", where], check=True)


def test_a_full_disk_ends_in_a_sentence_and_with_space_the_run_goes_on(tmp_path: Path, job: str, disk: Path) -> None:
    said = sentence(atoll(tmp_path, "run", job, "--out", "disk"))
    (folder,) = disk.iterdir()
    assert str(folder.relative_to(tmp_path)) in said
    assert "No space left" in said
    assert f"atoll run --resume disk/{folder.name}" in said
    assert whole_checkpoints(folder) >= 1
    subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
    done = atoll(tmp_path, "run", "--resume", f"disk/{folder.name}")
    assert done.returncode == 0, done.stderr
    said_job = parse(SHORT, "soft")
    whole = simulate(said_job.job, build(said_job.data, 0), 0, out=tmp_path / "whole", workers=0)
    assert (folder / "model.safetensors").read_bytes() == ((whole.folder or disk) / "model.safetensors").read_bytes()
    assert rounds_of(read(folder).facts) == list(range(1, 151))


def test_a_file_that_may_not_grow_ends_in_a_sentence(tmp_path: Path, job: str) -> None:
    said = sentence(atoll(tmp_path, "run", job, "--rounds", "150", limit=30_000))
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"runs/{folder.name}" in said
    assert "--resume" in said
    assert whole_checkpoints(folder) >= 1


def test_a_disk_that_is_full_from_the_start_ends_in_a_sentence(tmp_path: Path, job: str) -> None:
    said = sentence(atoll(tmp_path, "run", job, limit=1))
    assert "runs" in said


def test_a_report_that_cannot_be_written_ends_in_a_sentence(tmp_path: Path, job: str) -> None:
    """The facts of two rounds fit into the limit, the page with its figures does not."""
    said = sentence(atoll(tmp_path, "run", job, "--rounds", "2", limit=12_000))
    assert "report" in said or "runs" in said


def test_a_file_whose_pieces_fail_stays_as_it_was(tmp_path: Path) -> None:
    from atoll.core.disk import replace_file

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise ValueError("no more")

    path = tmp_path / "kept"
    replace_file(path, [b"o", b"ld"])
    with pytest.raises(ValueError, match="no more"):
        replace_file(path, pieces())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_folder_is_refused_before_training(tmp_path: Path, job: str) -> None:
    (tmp_path / "file").write_text("")
    done = atoll(tmp_path, "run", job, "--out", "file/sub")
    said = sentence(done)
    assert "file/sub" in said
    assert "--out" in said
    assert "round" not in done.stderr


def diverges(tmp_path: Path, *sets: str) -> tuple[str, Path]:
    given = [word for s in sets for word in ("--set", s)]
    said = sentence(atoll(tmp_path, "run", "digits", "--set", "method.model.hidden=[64]", *given))
    (folder,) = (tmp_path / "runs").iterdir()
    return said, folder


def test_a_run_that_diverges_names_round_parties_and_remedy_and_keeps_the_last_model(tmp_path: Path) -> None:
    grows = 'method.lr={use="exponential", start=0.01, factor=1e20}'
    said, folder = diverges(tmp_path, grows)
    found = re.search(r"round (\d+): party [\d, ]+.*model of round (\d+) was kept.*--set method.lr", said)
    assert found
    t = int(found[1])
    assert t > 1
    assert int(found[2]) == t - 1
    memory = read(folder).memory()
    assert memory is not None
    assert int(memory["t"]) == t - 1
    assert whole_checkpoints(folder) >= 1


def test_what_diverges_at_once_keeps_the_model_it_began_with(tmp_path: Path) -> None:
    said, folder = diverges(tmp_path, "method.lr=1e20")
    assert "round 1: " in said
    assert "party" in said
    assert "the model of round 0 was kept" in said
    assert whole_checkpoints(folder) == 1


def test_a_step_of_the_server_that_diverges_is_not_kept(tmp_path: Path) -> None:
    """What parties send is fine, what the server makes of it is not: also in the last round, which nobody follows."""
    said, folder = diverges(tmp_path, "rounds=1", "method.server.lr=1e39")
    assert "round 1: the step of the server gave numbers that are not finite" in said
    assert "method.server.lr" in said
    memory = read(folder).memory()
    assert memory is not None
    assert int(memory["t"]) == 0
    assert np.isfinite(memory["state"]["params"]).all()
