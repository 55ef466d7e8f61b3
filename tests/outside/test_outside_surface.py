"""Parts from outside use the public surface alone: modules that the page on own parts names, and no private name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "extend.md").read_text(encoding="utf-8")
(LISTED,) = re.findall(r"^A part imports from (.*?)\. ", PAGE, re.MULTILINE | re.DOTALL)
SURFACE = set(re.findall(r"`(atoll[\w.]*)`", LISTED))
# The parts that showed what a method, a select or a metric must be able to do; each has tests of its own here.
PROBED = {
    "Scaffold", "FedDyn", "FedLin", "FedNova", "Boost", "Componentwise", "Logit", "KMeans", "Query", "Valued", "Active",
    "Ditto", "FedPer",
}  # fmt: skip


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of all imports, also of lazy ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def is_public(module: str) -> bool:
    return module in SURFACE or (module.startswith("atoll.core.") and "atoll.core" in SURFACE)


@pytest.mark.parametrize("path", sorted((HERE / "parts").glob("*.py")), ids=lambda path: path.stem)
def test_parts_use_nothing_private(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_atoll = [(module, name) for module, name in imported(tree) if module.partition(".")[0] == "atoll"]
    assert [pair for pair in of_atoll if not is_public(pair[0]) or pair[1].startswith("_")] == []
    reached = {
        node.attr for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) and ast.unparse(node.value) != "self"
    }  # fmt: skip
    assert not reached - {"_replace"}  # of a named tuple, where it is public


def test_every_probed_part_is_here_and_tested() -> None:
    made = {
        node.name for path in (HERE / "parts").glob("*.py") for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    tested = {
        name for path in HERE.glob("test_*.py") for module, name in imported(ast.parse(path.read_text()))
        if module.startswith("parts.")
    }  # fmt: skip
    assert len(PROBED) == 13
    assert made & tested >= PROBED
