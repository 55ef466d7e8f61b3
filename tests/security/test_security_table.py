"""The attack table names tests that there are, and never calls an attack held off that was not shown to be."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("security_table", HERE / "table.py")
assert spec
assert spec.loader
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)


@pytest.mark.parametrize("attack", table.ATTACKS, ids=lambda attack: attack.what)
def test_every_attack_is_played_by_a_test(attack: table.Attack) -> None:
    for test in attack.tests:
        file, _, name = test.partition("::")
        tree = ast.parse((HERE.parent / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


@pytest.mark.parametrize("ends", [{"failed"}, {"passed", "failed"}, {"skipped"}, {"passed", "skipped"}, None])
def test_what_failed_or_did_not_run_is_not_held_off(ends: set[str] | None) -> None:
    attack, outcomes = table.ATTACKS[1], table.Outcomes()
    (test,) = attack.tests
    outcomes.found = {} if ends is None else {f"tests/{test}": ends}
    assert outcomes.of(attack).startswith("NOT SHOWN")
    outcomes.found = {f"tests/{test}": {"passed"}}
    assert outcomes.of(attack) == attack.now


@pytest.mark.nightly
def test_every_attack_is_held_off() -> None:
    done = subprocess.run([sys.executable, str(HERE / "table.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "NOT SHOWN" not in done.stdout
