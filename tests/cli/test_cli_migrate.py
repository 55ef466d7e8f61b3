"""`atoll migrate` on files as people have them: all or nothing, with a copy of what was there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_cli_help import fine, refused, within

RELEASE = Path(__file__).parents[1] / "golden" / "release_0_1"
OLD = """\
# mine
data = { use = "digits", clients = 5 }
method = { use = "fedavg", model = "softmax" }
every = 5 # rounds
""".replace("\n", "\r\n")  # with the ends of lines of another system, which stay
NEW = OLD.replace("every = 5", "eval_every = 5")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_bytes(OLD.encode())
    path.chmod(0o640)
    return path


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_rewritten_and_the_old_one_kept(tmp_path: Path, job: Path) -> None:
    assert fine(tmp_path, "migrate", "job.toml").splitlines() == [
        "job.toml, line 4: every is now eval_every",
        "job.toml: rewritten; job.toml.0.1 is the file as it was",
    ]
    assert job.read_bytes() == NEW.encode()
    assert (tmp_path / "job.toml.0.1").read_bytes() == OLD.encode()
    assert job.stat().st_mode & 0o777 == (tmp_path / "job.toml.0.1").stat().st_mode & 0o777 == 0o640
    assert files(tmp_path) == {"job.toml", "job.toml.0.1"}
    fine(tmp_path, "explain", "job.toml")


def test_migrating_again_changes_nothing(tmp_path: Path, job: Path) -> None:
    fine(tmp_path, "migrate", "job.toml")
    before = job.stat().st_mtime_ns
    assert fine(tmp_path, "migrate", "job.toml") == "job.toml: nothing to change\n"
    assert job.stat().st_mtime_ns == before


def test_check_only_says_what_would_change(tmp_path: Path, job: Path) -> None:
    done = within(tmp_path, "migrate", "--check", "job.toml")
    assert done.returncode == 1
    assert done.stdout == "job.toml, line 4: every is now eval_every\n"
    assert (job.read_bytes(), files(tmp_path)) == (OLD.encode(), {"job.toml"})
    job.write_text(NEW)
    assert fine(tmp_path, "migrate", "--check", "job.toml") == "job.toml: nothing to change\n"


@pytest.mark.parametrize("text", [f'parts = {{ mine = "{"0" * 64}" }}\n', "max_memory = 5\n"])
def test_a_policy_of_today_is_known_by_any_of_its_keys(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    assert fine(tmp_path, "migrate", "policy.toml") == "policy.toml: nothing to change\n"


def test_jobs_and_policies_go_together(tmp_path: Path, job: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text((RELEASE / "party" / "policy.toml").read_text())
    said = fine(tmp_path, "migrate", "job.toml", "policy.toml")
    assert "policy.toml, line 8: least_cohort is now min_cohort" in said
    assert "policy.toml: rewritten" in said
    assert "job.toml: rewritten" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not TOML, so neither a job file nor a policy file"),
        ("[project]\nname = 'x'\n", "neither a job file (it names no method) nor a policy file"),
        ("", "neither a job file"),
        (
            'data = "digits"\nmethod = "fedavg"\nevery = 1\neval_every = 2\n',
            "left as it is: every is called eval_every",
        ),
        ('data = "digits"\nmethod = "fedvag"\nevery = 1\n', "did you mean 'fedavg'?; the file is left as it is"),
        ("most_rounds = 0\n", "a limit is a whole number above 0; leave it out for none; the file is left as it is"),
    ],
)
def test_what_cannot_be_rewritten_is_left_alone(tmp_path: Path, job: Path, text: str, sentence: str) -> None:
    (tmp_path / "other.toml").write_text(text)
    assert sentence in refused(tmp_path, "migrate", "job.toml", "other.toml")
    assert (tmp_path / "other.toml").read_text() == text
    assert job.read_bytes() == OLD.encode(), "all files of a call are looked at before any is written"
    assert files(tmp_path) == {"job.toml", "other.toml"}


def test_folders_missing_files_and_bytes_are_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused(tmp_path, "migrate", "gone.toml")
    assert "is a folder: name job and policy files" in refused(tmp_path, "migrate", ".")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in refused(tmp_path, "migrate", "bytes.toml")


def test_a_copy_of_something_else_is_not_overwritten(tmp_path: Path, job: Path) -> None:
    (tmp_path / "job.toml.0.1").write_text("precious")
    assert "job.toml.0.1 is there already and is another file" in refused(tmp_path, "migrate", "job.toml")
    assert (tmp_path / "job.toml.0.1").read_text() == "precious"
    assert job.read_bytes() == OLD.encode()
    (tmp_path / "job.toml.0.1").write_bytes(OLD.encode())  # as after a crash between the copy and the file
    fine(tmp_path, "migrate", "job.toml")
    assert job.read_bytes() == NEW.encode()


def test_a_link_stays_a_link(tmp_path: Path, job: Path) -> None:
    (tmp_path / "linked.toml").symlink_to(job)
    fine(tmp_path, "migrate", "linked.toml")
    assert (tmp_path / "linked.toml").is_symlink()
    assert job.read_bytes() == NEW.encode()


def test_a_file_stays_as_it_is_where_its_copy_cannot_be_written(tmp_path: Path, job: Path) -> None:
    (tmp_path / "job.toml.0.1").mkdir()
    assert "cannot write job.toml and its copy job.toml.0.1: Is a dir" in refused(tmp_path, "migrate", "job.toml")
    assert job.read_bytes() == OLD.encode()
    assert files(tmp_path) == {"job.toml", "job.toml.0.1"}


def test_a_run_folder_of_the_release_is_reported_and_not_resumed(tmp_path: Path) -> None:
    shutil.copytree(RELEASE / "run", tmp_path / "run")
    assert fine(tmp_path, "report", "run") == "run/report.html\n"
    assert "run holds a run of release 0.1, which this release cannot resume: atoll report run shows it" in refused(
        tmp_path, "run", "--resume", "run"
    )
    (tmp_path / "run" / "format").write_text("3\n")
    assert "run has format 3, and this release reads up to 2: upgrade" in refused(tmp_path, "report", "run")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [('"fedavg"', '"fedadam"', "method.bias_correction"), ("every", 'combine = "light_sum"\nevery', "combine.privacy")],
)
def test_a_default_that_is_another_now_is_told(tmp_path: Path, job: Path, old: str, new: str, field: str) -> None:
    """Words can be rewritten; whether a file meant the old default only its owner knows."""
    job.write_text(NEW.replace("\r", "").replace("eval_every", "every").replace(old, new))
    assert f"job.toml: {field} is left out: " in within(tmp_path, "migrate", "--check", "job.toml").stdout
