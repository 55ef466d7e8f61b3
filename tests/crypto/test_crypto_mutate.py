"""The mutation script knows every security check of the secure-aggregation files."""

from __future__ import annotations

import ast
from pathlib import Path

import mutate


def test_the_script_finds_the_checks() -> None:
    found = mutate.checks()
    assert len(found) > 60
    assert {check.file for check in found} == set(mutate.FILES)
    assert len({(check.file, check.line) for check in found}) == len(found)


def test_no_check_hides_in_another_form() -> None:
    """In the parties' own files, whatever raises is `refuse_if`, or passes on what a library or another check said."""
    room = mutate.SOURCE / "atoll/crypto"
    text = {file: (room / file).read_text() for file in mutate.FILES}
    assert sum(t.count("refuse_if(") for t in text.values()) == len(mutate.checks()) + 1  # and its definition
    for name in ("client.py", "policy.py", "messages.py", "server.py"):
        tree = ast.parse(text[f"secagg/{name}"])
        handlers = {id(n) for h in ast.walk(tree) if isinstance(h, ast.ExceptHandler) for n in ast.walk(h)}
        assert all(id(n) in handlers for n in ast.walk(tree) if isinstance(n, ast.Raise)), name


def test_every_file_with_checks_is_known() -> None:
    room = mutate.SOURCE / "atoll/crypto"
    secagg = {f"secagg/{p.name}" for p in (room / "secagg").glob("*.py") if "refuse_if(" in p.read_text()}
    assert secagg <= set(mutate.FILES)
    assert all(Path(mutate.HERE / test).exists() for test in mutate.TESTS)
