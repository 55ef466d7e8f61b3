"""The mutation script knows every refusal of the protocols, of the sums that use them, of parties and of servers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import mutate
import pytest

PACKAGE = mutate.SOURCE / "atoll"


def files(*folders: str) -> dict[str, str]:
    paths = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in paths}


@pytest.mark.parametrize("suite", mutate.SUITES, ids=lambda suite: suite.folder)
def test_the_script_finds_the_refusals(suite: mutate.Suite) -> None:
    found = mutate.checks(suite)
    assert len(found) >= 150
    assert {check.file for check in found} == set(suite.files)
    assert len({check[:3] for check in found}) == len(found)
    tests = suite.tests + suite.slow + suite.bound_tests + suite.field_tests
    assert all((mutate.TESTS / suite.folder / test).exists() for test in tests)


@pytest.mark.parametrize("suite", mutate.SUITES, ids=lambda suite: suite.folder)
def test_no_refusal_hides_in_another_form(suite: mutate.Suite) -> None:
    """What refuses is a check, passes on what a library or another check said, or stands at the end of a function."""
    for file in suite.files:
        tree = mutate.parsed(file)
        nodes, found = list(ast.walk(tree)), mutate.check_nodes(tree, suite.ends)
        handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
        known = {id(n) for node in (*found, *handlers) for n in ast.walk(node)}
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        known |= {id(f.body[-1]) for f in functions}
        known |= {id(n) for f in functions if f.name == "refuse_if" for n in ast.walk(f)}
        raised = {n: mutate.called(n.exc) for n in nodes if isinstance(n, ast.Raise)}
        ends = [n for n, name in raised.items() if name in suite.ends or (not suite.ends and name != "AssertionError")]
        hidden = [n.lineno for n in ends if raised[n] and id(n) not in known]
        assert not hidden, (file, hidden)
        calls = [n for n in nodes if mutate.called(n) == "refuse_if"]
        assert all(id(n) in known for n in calls), file


def test_all_that_is_hashed_is_known_by_the_script() -> None:
    suite = mutate.CRYPTO
    found = mutate.bindings(suite)
    assert len(found) > 60
    assert {binding.file for binding in found} == set(suite.bound)
    assert {file for file, text in files("crypto", "combine").items() if "packed(" in text} == set(suite.bound)


def test_all_limits_of_fields_are_known_by_the_script() -> None:
    suite = mutate.PEERS
    assert len(mutate.limits(suite)) > 35
    texts = files("runtimes/network/messages", "core", "data")
    with_limits = {file for file, text in texts.items() if "Meta(" in text}
    assert with_limits <= set(suite.fields)


# Files of the network that refuse a person who starts something, not a peer; or that pass refusals on.
OWN = {f"runtimes/network/{name}.py" for name in (
    "messages/calls", "server/disk", "server/health", "server/serve", "server/serve_roles",
)}  # fmt: skip


def test_every_file_that_refuses_is_known() -> None:
    known = {file for suite in mutate.SUITES for file in suite.files}
    with_checks = {file for file, text in files("crypto", "combine").items() if "refuse_if(" in text}
    with_checks |= {file for file in files("runtimes/network") if mutate.check_nodes(mutate.parsed(file))}
    assert with_checks - OWN <= known
    assert with_checks >= OWN


@pytest.mark.nightly
def test_every_refusal_is_guarded_by_a_test() -> None:
    """The whole table, with tests of real processes."""
    done = subprocess.run(
        [sys.executable, mutate.HERE / "mutate.py", "--all"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(mutate.SOURCE)}, cwd=Path(mutate.HERE),
    )  # fmt: skip
    lost = [line for line in done.stdout.splitlines() if line.startswith("SURVIVED")]
    assert done.returncode == 0, "\n".join(lost) or done.stdout[-2000:] + done.stderr[-2000:]
