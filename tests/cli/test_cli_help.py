"""What `atoll` says before it does anything: help, lists, and what is imported to say it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import atoll as package
import spawn
from atoll.cli import main
from atoll.data import SCHEMES, names
from atoll.job.catalogue import PARTS
from atoll.job.file import examples

ATOLL = (sys.executable, "-c", "from atoll.cli import main; main()")
HEAVY = ("jax", "torch", "optax", "sklearn", "matplotlib")


def atoll(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return spawn.run([*ATOLL, *args], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def within(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Do what `atoll` does in this process: quicker, for what only reads a job and says something."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["atoll", *args])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception:
            traceback.print_exc(file=err)
            code = 1
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def fine(cwd: Path, *args: str, run: Callable[..., subprocess.CompletedProcess[str]] = within) -> str:
    """Run `atoll` and return what it printed."""
    done = run(cwd, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(cwd: Path, *args: str, run: Callable[..., subprocess.CompletedProcess[str]] = within) -> str:
    """Run `atoll`, which must end with exit code 2 and one sentence; return the sentence."""
    done = run(cwd, *args)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("atoll: ")]
    return said


def modules(code: str, wanted: tuple[str, ...]) -> list[str]:
    """Say which of these are imported after some code has run in a new interpreter."""
    tail = f"import json, sys\nprint(json.dumps([m for m in {wanted!r} if m in sys.modules]))"
    done = spawn.run([sys.executable, "-c", f"{code}\n{tail}"], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_list_shows_every_part_with_its_purpose(tmp_path: Path) -> None:
    shown = fine(tmp_path, "list", run=atoll)
    parts = [name for known in PARTS.values() for name in known]
    for name in [*parts, *names(), *SCHEMES, *examples()]:
        assert re.search(rf"^  {re.escape(name)} +\S.{{10,}}", shown, re.M), name
    assert all(re.search(rf"^{kind}$", shown, re.M) for kind in PARTS)


def test_list_of_one_kind_shows_that_kind_and_its_fields(tmp_path: Path) -> None:
    shown = fine(tmp_path, "list", "stop")
    assert "patience" in shown
    assert "rounds = 20" in shown
    assert "fedavg" not in shown
    assert "did you mean 'stop'?" in refused(tmp_path, "list", "stopp")


def test_list_of_data_and_splits_shows_their_options(tmp_path: Path) -> None:
    shown = fine(tmp_path, "list", "data")
    assert re.search(r"^  synthetic .*\n +clients, alpha = 1.0, beta = 1.0, samples = None", shown, re.M)
    assert re.search(r"^  csv .*\n +path, target, client = None, holdout = 0.2", shown, re.M)
    shown = fine(tmp_path, "list", "split")
    assert re.search(r"^  dirichlet .*\n +alpha = 0.5, min_samples = 1\n", shown, re.M)
    assert re.search(r"^  iid .*\n  shards .*\n +per_client = 2\n", shown, re.M), "iid has no option"


def test_help_names_every_verb(tmp_path: Path) -> None:
    shown = fine(tmp_path, "--help", run=atoll)
    assert all(
        re.search(rf"^  {verb} ", shown, re.M) for verb in ("run", "explain", "report", "compare", "list", "new")
    )
    assert "--resume" in fine(tmp_path, "run", "--help")


def test_without_a_verb_help_is_shown_instead_of_a_traceback(tmp_path: Path) -> None:
    done = atoll(tmp_path)
    assert "Traceback" not in done.stderr
    assert "Commands:" in done.stdout + done.stderr


@pytest.mark.parametrize("args", [("run", "--bogus"), ("fly",)])
def test_a_wrong_command_line_is_a_sentence(args: tuple[str, ...], tmp_path: Path) -> None:
    refused(tmp_path, *args, run=atoll)


@pytest.mark.parametrize("args", [("run", "--rounds", "many"), ("report",), ("run", "digits", "twice")])
def test_so_is_a_wrong_value(args: tuple[str, ...], tmp_path: Path) -> None:
    refused(tmp_path, *args)


def test_import_atoll_imports_nothing_heavy() -> None:
    assert modules("import atoll", (*HEAVY, "typer", "rich", "numpy", "msgspec")) == []


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from atoll.cli import main
sys.argv = ["atoll", "--help"]
try:
    main()
except SystemExit:
    pass
"""
    assert modules(code, HEAVY) == []


def test_every_public_name_can_be_had() -> None:
    assert package.__all__ == sorted(set(package.__all__))
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    scope: dict[str, object] = {}
    exec("from atoll import *", scope)
    assert set(package.__all__) <= set(scope)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'fedavg'"):
        package.fedavg  # noqa: B018
