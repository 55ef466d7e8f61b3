"""`atoll run` and its sisters, as a person at a terminal meets them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
from test_cli_help import ATOLL, atoll, fine, refused, within

import spawn
from atoll.data import build, names
from atoll.report.units import in_bytes

QUICK = ("--set", "method.model=softmax", "--set", "method.epochs=1")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    cwd = tmp_path_factory.mktemp("ran")
    sets = ("--set", "method.lr=0.05", "--set", "stages.0.use=average", "--set", "select.use=count")
    more = ("--set", "select={use='count', number=4}")
    return cwd, atoll(cwd, "run", "digits", "--rounds", "3", *QUICK, *sets, *more)


def named(done: subprocess.CompletedProcess[str], what: str) -> str:
    found = re.search(rf"^{what} +(\S+)$", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    return found[1]


def test_a_run_ends_by_naming_what_it_wrote(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = ran
    assert done.returncode == 0, done.stderr
    assert "ended: all 3 rounds done" in done.stdout
    assert (cwd / named(done, "run")).is_dir()
    assert (cwd / named(done, "model")).stat().st_size > 650 * 4
    assert "<html" in (cwd / named(done, "report")).read_text().lower()[:500]


def test_piped_output_is_plain_lines(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = ran
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert re.search(r"^round 3/3  test.accuracy 0\.\d{4}  local.accuracy 0\.\d{4}$", done.stderr, re.M)
    lines = [line for line in done.stderr.splitlines() if line.startswith("round 3/3")]
    assert len(lines) == 1, "the last round is said once, with what was seen in it"


def test_overrides_reach_the_job_file_of_the_run(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = ran
    said = tomllib.loads((cwd / named(done, "run") / "job.toml").read_text())
    assert said["method"]["lr"] == 0.05
    assert said["method"]["model"]["use"] == "softmax"
    assert said["stages"] == [{"use": "train_loss", "bound": 10.0}, {"use": "average", "by": "answers"}]
    assert said["select"] == {"use": "count", "number": 4}
    assert said["rounds"] == 3


def test_the_job_file_of_a_run_gives_the_same_bits(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = ran
    again = atoll(cwd, "run", f"{named(done, 'run')}/job.toml", "--out", "again")
    assert (cwd / named(again, "model")).read_bytes() == (cwd / named(done, "model")).read_bytes()
    assert (cwd / named(again, "run") / "job.toml").read_text() == (cwd / named(done, "run") / "job.toml").read_text()


def test_report_writes_the_page_again(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = ran
    page = cwd / named(done, "report")
    page.unlink()
    assert named(done, "report") in fine(cwd, "report", named(done, "run"))
    assert "<html" in page.read_text().lower()[:500]


def test_resuming_a_finished_run_changes_nothing(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = ran
    model = cwd / named(done, "model")
    before = model.read_bytes()
    assert "ended: all 3 rounds done" in fine(cwd, "run", "--resume", named(done, "run"), run=atoll)
    assert model.read_bytes() == before
    assert "--resume" in refused(cwd, "run", "--resume", named(done, "run"), "--rounds", "9")


def test_resuming_takes_no_other_job_and_no_other_place(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = ran
    folder = named(done, "run")
    assert refused(cwd, "run", "private", "--resume", folder).endswith("leave out private")
    assert refused(cwd, "run", "--resume", folder, "--out", "elsewhere").endswith("leave out --out")
    assert not (cwd / "elsewhere").exists()


def test_tensorboard_and_mlflow_are_handed_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store = (tmp_path / "mlruns").as_uri()
    for name, value in (("ALLOW_FILE_STORE", "true"), ("DISABLE_TELEMETRY", "true"), ("TRACKING_URI", store)):
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    fine(tmp_path, "run", "digits", "--rounds", "2", *QUICK, "--tensorboard", "events", "--mlflow", "trial")
    (facts,) = tmp_path.glob("runs/*/facts.jsonl")
    noted = [json.loads(line) for line in facts.read_text().splitlines()]
    wanted = [(f["round"], f["accuracy"]) for f in noted if f["what"] == "evaluation" and f["split"] == "test"]
    assert [t for t, _ in wanted] == [0, 1, 2]
    seen = EventAccumulator(str(tmp_path / "events"))
    seen.Reload()
    assert [e.step for e in seen.Scalars("test.accuracy")] == [0, 1, 2]
    assert [e.value for e in seen.Scalars("test.accuracy")] == pytest.approx([v for _, v in wanted])
    client = MlflowClient(store)
    (logged,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])  # type: ignore[union-attr]
    history = client.get_metric_history(logged.info.run_id, "test.accuracy")
    assert sorted((m.step, m.value) for m in history) == wanted


def test_loop_names_the_party_whose_data_is_broken(tmp_path: Path) -> None:
    """The file is cut short: the last of three parties misses samples, which no check before the run notices."""
    build({"use": "digits", "clients": 3}).save(tmp_path / "held")
    for name in ("x", "y"):
        file = tmp_path / "held" / f"train.{name}.npy"
        np.save(file, np.load(file)[:-9])
    (tmp_path / "job.toml").write_text(
        'name = "held"\nrounds = 1\ndata = { use = "saved", folder = "held" }\nselect = "all"\n'
        'method = { use = "fedavg", model = "softmax" }\n'
    )
    assert "one of parties" in refused(tmp_path, "run", "job.toml", "--workers", "0")
    assert "round 1, party 2," in refused(tmp_path, "run", "job.toml", "--loop")


def test_a_terminal_sees_a_live_line_with_round_and_time_left(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    args = [*ATOLL, "run", "digits", "--rounds", "60", *QUICK]
    process = spawn.start(args, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    try:
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            seen += piece
    finally:
        process.kill() if process.poll() is None and not seen else None
        code = process.wait(60)
        os.close(ours)
    text = seen.decode()
    assert code == 0, text
    assert "\x1b[" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"round\s+\d+/60", plain)
    assert re.search(r"\d:\d\d:\d\d", plain)
    assert "test.accuracy" in plain
    assert "ended: all 60 rounds done" in plain


# --- explain, new, compare --------------------------------------------------------------------------------------------


def test_explain_counts_right(tmp_path: Path) -> None:
    """64·64 + 64 + 64·10 + 10 = 4,810 parameters: with a loss and a weight 4,812 numbers up."""
    said = fine(tmp_path, "explain", "digits", run=atoll)
    assert "4,810 parameters" in said
    assert "4,812 numbers in 19.2 kB" in said
    up, down = 4812 * 4 + 145, 4810 * 4 + 170  # the numbers, and their names, types and shapes
    cohort, rounds, sums = 10, 60, 208
    assert f"a party sends {in_bytes(up)} and receives {in_bytes(down)}" in said
    assert f"a round moves at most {in_bytes((up + down) * cohort)}" in said
    looked = 20 * (1 + rounds)  # all parties evaluate before the first round and after each
    whole = (up + down) * cohort * rounds + (down + sums) * looked
    assert f"the whole job at most {in_bytes(whole)}" in said
    assert f"about 30.0 times: {in_bytes((up + down) * 30)}" in said
    held = 1797 - round(1797 * 0.2)
    assert "20 parties hold 1," in said
    samples = int(re.search(r"hold ([\d,]+) samples", said)[1].replace(",", ""))  # type: ignore[index]
    assert samples < held
    assert "about 10 of them in a round, at most 60 rounds" in said


def test_explain_follows_the_channel(tmp_path: Path) -> None:
    each = "combine={use='each', rule={use='trimmed_mean', f=2}}"
    stages = "stages=[{use='clip', norm=2.0}, 'average']"
    said = fine(tmp_path, "explain", "digits", "--set", each, "--set", stages)
    assert "4,811 numbers in 19.2 kB, no longer than 2.00998, unweighted" in said
    assert f"all 10 vectors of a round at once: {4811 * 4 * 10 / 1e3:.3g} kB" in said


def test_explain_refuses_what_run_would_refuse(tmp_path: Path) -> None:
    assert "Average" in refused(tmp_path, "explain", "digits", "--set", "combine={use='each', rule='median'}")
    too_many = "combine={use='each', rule={use='trimmed_mean', f=5}}"
    refused(tmp_path, "explain", "digits", "--set", too_many, "--set", "stages.0.use=average")


def test_new_writes_a_job_that_explain_and_run_accept(tmp_path: Path) -> None:
    assert "mine.toml" in fine(tmp_path, "new", "mine")
    assert "job mine" in fine(tmp_path, "explain", "mine.toml")
    assert "ended: all 2 rounds done" in fine(tmp_path, "run", "mine.toml", "--rounds", "2", run=atoll)
    before = (tmp_path / "mine.toml").read_text()
    assert "mine.toml exists already" in refused(tmp_path, "new", "mine")
    assert (tmp_path / "mine.toml").read_text() == before


INSTALLED = ("digits", "breast_cancer", "wine", "diabetes", "synthetic", "csv", "saved", "schema")


@pytest.mark.parametrize(
    "data", [pytest.param(name, marks=() if name in INSTALLED else pytest.mark.data) for name in names()]
)
def test_new_starts_from_any_data(data: str, tmp_path: Path) -> None:
    fine(tmp_path, "new", "other", "--data", data)
    if data == "csv":
        assert "other.csv is not a file" in refused(tmp_path, "explain", "other.toml")
        rows = [f"{k},{k % 7},{'yes' if k % 3 else 'no'}" for k in range(100)]
        (tmp_path / "other.csv").write_text("\n".join(["a,b,label", *rows]))
    if data == "saved":
        assert "other holds no saved federation" in refused(tmp_path, "explain", "other.toml")
        build({"use": "digits", "clients": 5}).save(tmp_path / "other")
    assert "job other" in fine(tmp_path, "explain", "other.toml")


def test_run_says_when_one_party_can_set_the_model_and_a_new_job_gives_no_reason_to(tmp_path: Path) -> None:
    done = within(tmp_path, "run", "digits", "--rounds", "1", *QUICK)
    (said,) = [line for line in done.stderr.splitlines() if "at will" in line]
    assert said.startswith(
        "note: one of 10 parties can set the model at will: nothing bounds its vector; put Clip(norm)"
    )
    fine(tmp_path, "new", "mine")
    stages = tomllib.loads((tmp_path / "mine.toml").read_text())["stages"]
    assert stages == [{"use": "clip", "norm": 5.0}, {"use": "weigh", "max_weight": 1000}]
    assert "at will" not in within(tmp_path, "run", "mine.toml", "--rounds", "1").stderr
    assert "at will" not in fine(tmp_path, "explain", "mine.toml")


def test_new_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    assert "did you mean 'digits'?" in refused(tmp_path, "new", "x", "--data", "digit")
    refused(tmp_path, "new", "nowhere/x")
    assert not list(tmp_path.rglob("*.toml"))


def test_compare_prints_what_it_writes(tmp_path: Path) -> None:
    shown = fine(tmp_path, "compare", "digits", *QUICK, "--set", "rounds=4", "--json", "f.json", run=atoll)
    found = json.loads((tmp_path / "f.json").read_text())
    for way in ("alone", "federated", "pooled"):
        row = re.search(rf"^{way} +(.*)$", shown, re.M)
        assert row
        names = ("all", "local", "local.worst10", "local.best")
        assert row[1].split() == [f"{found[way][name]:.3f}" for name in names]
    assert found["verdict"] in shown
    assert shown.rstrip().endswith(found["verdict"])
    assert f"every sample {found['passes']} times" in shown
    assert found["passes"] == round(4 * 0.5 * 1)
    assert f"{found['better_off']} of {found['parties']} parties" in shown


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("digitz",), "did you mean 'digits'?"),
        (("--set", "metod.lr=1"), "did you mean 'method'?"),
        (("--set", "method.use=fedavgg"), "did you mean 'fedavg'?"),
        (("--set", "method.lrr=1"), "did you mean 'lr'?"),
        (("--set", "method.epochs=many"), "method.epochs"),
        (("--set", "data.use=digit"), "digits"),
        (("--set", "data.client=3"), "clients"),
        (("--set", "rounds.x=3"), "rounds.x"),
        (("--set", "method.model=logistic"), "use softmax"),
        (("--set", "stop=[{use='target', metric='tset.loss'}]", "--rounds", "1"), "tset.loss"),
        (("--set", "availability={use='trace', file='none.csv'}", "--rounds", "1"), "none.csv"),
        (("--resume", "nowhere"), "nowhere"),
        (("--workers=-1", "--rounds", "1"), "workers"),
        (("--loop", "--workers", "2"), "leave out --workers 2"),
    ],
)
def test_a_mistake_is_a_sentence(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    run = atoll if "digitz" in args else within
    assert words in refused(tmp_path, "run", *args, run=run)


def test_bad_toml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('name = "bad"\nrounds = = 3\n')
    said = refused(tmp_path, "run", "bad.toml")
    assert "bad.toml" in said
    assert "line 2" in said


def test_a_folder_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused(tmp_path, "run", "folder")


def test_text_that_is_no_utf8_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes('name = "caf\xe9"\n'.encode("latin-1"))
    assert "latin.toml" in refused(tmp_path, "run", "latin.toml")


def test_a_report_of_nothing_is_a_sentence(tmp_path: Path) -> None:
    assert "no run folder" in refused(tmp_path, "report", "nowhere")


def test_protocols_run_on_ray_too() -> None:
    from atoll.cli.run import _trainer

    assert _trainer("ray", 2, loop=False, protocols=True).keywords["protocols"] is True


WRONG = {
    "top-k of models": (
        'method={use="fedsgd", model="softmax", by="weights"}', 'stages=["weigh", {use="top_k", fraction=0.1}]',
        "TopK(fraction=0.1, feedback=True) is for changes of a model, and FedSGD sends whole models",
    ),
    "clipped models": (
        'method={use="fedsgd", model="softmax", by="weights"}', 'stages=[{use="clip", norm=50.0}, "average"]',
        "is for changes of a model",
    ),
    "a mean of who was expected": (
        'method={use="fedsgd", model="softmax", by="weights"}', 'stages=[{use="average", by="expected"}]',
        "is for changes of a model",
    ),
    "a target that nobody measures": (
        'stop=[{use="target", metric="test.mse", value=0.1}]',
        "nothing measures 'test.mse'; this run measures test.accuracy, test.loss",
    ),
    "more parties than there are, in batches": (
        'select={use="batches", number=40, size=4}', "select: number=40: there are only 20 parties",
    ),
    "more parties than there are, in a partition": (
        'select={use="partition", number=40}', "select: number=40: there are only 20 parties",
    ),
    "more parties than there are": ('select={use="count", number=99}', "number=99: there are only 20 parties"),
    "images of a table": (
        'data={use="wine", clients=20}', "method.model=cnn", "13 features are no square image of 1 channel(s): use mlp",
    ),
    "a server that searches lines": ('method.server={use="lbfgs"}', "'lbfgs' cannot step with a gradient"),
    "a party that searches lines": ('method.optimiser={use="lbfgs"}', "'lbfgs' cannot step with a gradient"),
    "an option that is no number": ('method.optimiser={use="adam", b1="x"}', "'adam' cannot step with a gradient"),
    "a metric twice": ('metrics=["auc", "auc"]', "two metrics are called 'auc': keep one of them"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("verb", ["run", "explain"])
def test_what_would_train_wrongly_is_refused(verb: str, what: str, tmp_path: Path) -> None:
    *sets, words = WRONG[what]
    options = [word for one in sets for word in ("--set", one)]
    assert words in refused(tmp_path, verb, "digits", *options)
