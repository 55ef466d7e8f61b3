"""The page on security names tests that there are, and shows the table of attacks as it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_security_table import table

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name or file for file, name in NAMED])
def test_every_test_that_the_page_names_exists(file: str, name: str) -> None:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert not name or name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_promise_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| | promise"))]
    promised = [row for row in rows if re.match(r"\| \d+ \|", row)]
    assert [int(row.split("|")[1]) for row in promised] == list(range(1, 21))
    assert all("::test_" in row for row in promised)


def test_the_page_shows_every_attack() -> None:
    for attack in table.ATTACKS:
        assert f"| {attack.what} | {attack.before} | {attack.now} |" in PAGE
