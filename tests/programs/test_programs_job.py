"""Job files of programs with roles, from text to a run and back; the command line around them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import atoll
from atoll.cli.app import app
from atoll.job.catalogue import BadJob
from atoll.job.file import dumps, load, load_any, parse_any
from atoll.job.roles import RoleJob, to_table
from atoll.programs.vertical import JointMoments

TEXT = """
name = "moments"
rounds = 2
program = { use = "joint_moments", bits = 2048 }
[roles]
A = "bank"
B = "shop"
C = "notary"
[data.A]
path = "host.csv"
id = "idx"
[data.B]
path = "guest.csv"
id = "idx"
features = ["visits", "spend"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables of the same rows in different orders, and a job over them."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(12, 4))
    for name, head, columns, order in (
        ("host.csv", "idx,age,income", slice(0, 2), range(12)),
        ("guest.csv", "spend,idx,visits", slice(2, 4), generator.permutation(12)),
    ):
        rows = [[*map(repr, map(float, x[k, columns]))] for k in order]
        at = head.split(",").index("idx")
        lines = [",".join([*row[:at], f"c{k:02d}", *row[at:]]) for k, row in zip(order, rows, strict=True)]
        (tmp_path / name).write_text("\n".join([head, *lines]) + "\n")
    (tmp_path / "job.toml").write_text(TEXT)
    np.save(tmp_path / "x.npy", x[:, [0, 1, 3, 2]])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_a_job_with_roles_is_read_and_written_to_the_same() -> None:
    job = parse_any(TEXT, "the test")
    assert isinstance(job, RoleJob)
    assert job.program == JointMoments()
    assert (job.name, job.rounds, job.seed) == ("moments", 2, 0)
    assert job.roles == {"A": "bank", "B": "shop", "C": "notary"}
    assert parse_any(dumps(to_table(job)), "again") == job
    told = tomllib.loads(dumps(to_table(job, data=False)))
    assert "data" not in told, "parties are not told of the files of a simulation"
    assert parse_any(TEXT, "the test", ["rounds=1", "program.precision=30", "roles.C=judge"]) == RoleJob(
        JointMoments(precision=30), {"A": "bank", "B": "shop", "C": "judge"}, 1, name="moments", data=job.data
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("joint_moments", "joint_moment"), "there is no program 'joint_moment'; did you mean 'joint_moments'"),
        (("bits = 2048", "bits = 512"), "program: bits=512: a Paillier key has 2048 bits, or 3072"),
        (('C = "notary"', ""), "roles: nobody plays C (holds the key, and no data)"),
        (('C = "notary"', 'C = "bank"'), "roles: bank plays two roles"),
        (('C = "notary"', 'C = "notary"\nD = "more"'), "roles.D: the program has no such role"),
        (('C = "notary"', "C = 3"), "say by name who plays each role"),
        (("[data.A]", "[data.Z]"), "data.Z: the program has no such role"),
        (("rounds = 2", "rounds = 0"), "rounds must be at least 1, got 0"),
        (("rounds = 2", 'rounds = "two"'), "a whole number is needed"),
        (("rounds = 2", "rounds = 2\nselect = { use = 'all' }"), "select: this key is for a job with a method"),
        (("rounds = 2", "rounds = 2\nsed = 3"), "sed: a job with roles has no such key; did you mean 'seed'"),
        (('program = { use = "joint_moments", bits = 2048 }\n', ""), "roles: a job with roles has a program: add one"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_a_sentence(change: tuple[str, str], words: str) -> None:
    assert change[0] in TEXT
    with pytest.raises(BadJob) as refusal:
        parse_any(TEXT.replace(*change), "the test")
    assert words in str(refusal.value)


def test_a_job_with_roles_is_no_job_with_a_method(folder: Path) -> None:
    with pytest.raises(BadJob, match="this is a program with roles"):
        load("job.toml")
    assert isinstance(load_any("job.toml"), RoleJob)


def test_atoll_runs_explains_reports_and_resumes_a_job_with_roles(folder: Path) -> None:
    explained = run("explain", "job.toml").stdout
    for words in ("role A (bank): holds columns", "brings 12 rows of age, income", "sealed for another role",
                  "must not work together: B and C", "hash of all ids together"):  # fmt: skip
        assert words in explained
    done = run("run", "job.toml", "--out", "runs")
    assert done.exit_code == 0, done.output
    (found,) = (folder / "runs").iterdir()
    for role in "AB":
        model = load_file(found / f"model-{role}.safetensors")
        np.testing.assert_allclose(model["covariance"], np.cov(np.load("x.npy").T), rtol=0, atol=1e-9)
        assert f"model-{role}.safetensors" in done.stdout
    assert not (found / "model-C.safetensors").exists()
    page = (found / "report.html").read_text()
    assert "<h2>Roles</h2>" in page
    assert "must not work together" in page
    assert "combin" not in page.split("<h2>Job file</h2>")[0]
    assert "untrained model" not in page
    assert "compiling" not in page
    assert "Time: a round took" in page
    assert "<td class='text'>holds columns, and encrypts them</td><td>12</td><td class='text'>age, income</td>" in page
    (found / "report.html").unlink()
    assert run("report", str(found)).exit_code == 0
    assert (found / "report.html").read_text() == page
    (found / "checkpoints" / "00000002.safetensors").unlink(missing_ok=True)  # as if it had not come so far
    facts = (found / "facts.jsonl").read_text().splitlines(keepends=True)
    (found / "facts.jsonl").write_text("".join(line for line in facts if '"end"' not in line))
    assert f"atoll run --resume {found} resumes it" in run("status", str(found)).stdout.replace("\n", "")
    again = run("run", "--resume", str(found))
    assert again.exit_code == 0, again.output
    assert run("status", str(found)).stdout.startswith("finished: 2 of 2 rounds done")


def test_one_round_is_not_several(folder: Path) -> None:
    done = run("run", "job.toml", "--rounds", "1", "--out", "runs")
    assert done.exit_code == 0, done.output
    assert "C = notary, 1 round\nround 1/1\n" in done.output
    assert "ended: its only round is done" in done.output
    (found,) = (folder / "runs").iterdir()
    assert (
        "ran for 1 round with 3 parties; it ended because its only round was done"
        in (found / "report.html").read_text()
    )
    assert "1 rounds" not in run("explain", "job.toml", "--set", "rounds=1").output


def test_options_of_jobs_with_a_method_are_refused(folder: Path) -> None:
    for options in (["--loop"], ["--workers", "2"], ["--on", "ray"]):
        done = run("run", "job.toml", *options)
        assert done.exit_code != 0
        assert isinstance(done.exception, BadJob | SystemExit)


def test_explaining_needs_no_data() -> None:
    from atoll.report.roles import explain_roles

    job = atoll.RoleJob(JointMoments(), {"A": "bank", "B": "shop", "C": "notary"})
    words = explain_roles(job, {}, "C")
    assert "role C (notary)" in words
    assert "role A" not in words


def test_a_resumed_folder_is_of_the_same_job(folder: Path) -> None:
    done = atoll.simulate_roles(load_any("job.toml"), out="runs")  # type: ignore[arg-type]
    with pytest.raises(BadJob, match="another job or seed"):
        atoll.simulate_roles(load_any("job.toml", ["seed=1"]), resume=done.folder)  # type: ignore[arg-type]


def test_every_key_of_a_job_with_a_method_is_known_as_such() -> None:
    from atoll.job.file import KEYS
    from atoll.job.roles import KEYS as ROLE_KEYS
    from atoll.job.roles import METHOD_KEYS

    assert set(METHOD_KEYS) == set(KEYS) - set(ROLE_KEYS)


def test_a_recipe_that_cannot_be_says_whose_it_is(folder: Path) -> None:
    with pytest.raises(atoll.data.BadData, match=r"data\.B: shoop\.csv is not a file"):
        atoll.simulate_roles(load_any("job.toml", ["data.B.path=shoop.csv"]))  # type: ignore[arg-type]


PLAYED = {"A": "bank", "B": "shop", "C": "notary"}
make: Any = RoleJob  # as seen by who reads no type hints
moments: Any = JointMoments
simulate: Any = atoll.simulate_roles


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make(JointMoments, PLAYED), "JointMoments"),
        (lambda: make("joint_moments", PLAYED), "program"),
        (lambda: make(JointMoments(), ["A", "B", "C"]), "roles is a dict by role"),
        (lambda: make(JointMoments(), {**PLAYED, "C": 3}), "roles is a dict by role"),
        (lambda: make(JointMoments(), PLAYED, rounds="3"), "rounds"),
        (lambda: moments(bits="2048"), "a whole number"),
        (lambda: simulate(JointMoments(), {}), "an atoll.RoleJob is needed"),
        (lambda: simulate(make(JointMoments(), PLAYED), [1]), "say what each role holds"),
        (lambda: simulate(make(JointMoments(), PLAYED), {"A": np.ones((3, 1))}), "give it columns"),
    ],
)
def test_slips_in_python_are_refused_in_a_sentence(call: Any, words: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the sentence is what matters
        call()
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
