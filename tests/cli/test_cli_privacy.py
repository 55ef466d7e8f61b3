"""Privacy from the command line: the job that comes with Atoll, explain, calibrate, and refusals in one sentence."""

from __future__ import annotations

from pathlib import Path

from test_cli_help import atoll

JOB = """
name = "dp"
rounds = 30
data = { use = "digits", clients = 40 }
method = { use = "fedavg", model = "softmax", lr = 0.1 }
select = { use = "poisson", rate = 0.25 }
stages = [{ use = "clip", norm = 0.5 }, { use = "average", by = "expected" }, { use = "gaussian", multiplier = 1.0 }]
"""


def test_the_private_job_runs_and_says_what_it_spent(tmp_path: Path) -> None:
    done = atoll(tmp_path, "run", "private", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    page = (folder / "report.html").read_text()
    assert "epsilon" in page.lower() or "ε" in page
    assert "simulated" in page


def test_explain_of_the_private_job(tmp_path: Path) -> None:
    done = atoll(tmp_path, "explain", "private")
    assert done.returncode == 0, done.stderr
    for words in (
        "differential privacy",
        "secure_sum",
        "unit: party",
        "see who takes part: sampling hides nobody",
        "who sees what",
    ):
        assert words in done.stdout


def test_calibrate_says_how_much_noise_and_how_to_set_it(tmp_path: Path) -> None:
    (tmp_path / "dp.toml").write_text(JOB)
    done = atoll(tmp_path, "calibrate", "dp.toml", "--epsilon", "4", "--delta", "1e-3")
    assert done.returncode == 0, done.stderr
    assert "--set stages.2.multiplier=" in done.stdout
    override = done.stdout.rsplit("--set ", 1)[1].strip()
    said = atoll(
        tmp_path,
        "explain",
        "dp.toml",
        "--set",
        override,
        "--set",
        "stop=[{use='budget',epsilon=4.0,delta=1e-3}]",
    )
    assert said.returncode == 0, said.stderr


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "dp.toml").write_text(JOB)
    cases = [
        (("run", "dp.toml", "--set", "stages.1.by=answers"), "Average(by='expected')"),
        (("run", "dp.toml", "--set", "stages.2.where=distributed"), "put Ring() before"),
        (("run", "dp.toml", "--set", "combine=secure_sum"), "put Ring() after Clip()"),
        (("run", "dp.toml", "--set", "stages.2.where=centre"), "'central', 'local' or 'distributed'"),
        (("run", "dp.toml", "--set", "combine=secure"), "secure_sum"),
        (("calibrate", "dp.toml", "--epsilon", "-1"), "above 0"),
    ]
    for args, words in cases:
        done = atoll(tmp_path, *args)
        assert done.returncode == 2, (args, done.stdout, done.stderr)
        assert words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
