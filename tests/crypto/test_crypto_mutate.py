"""The mutation script knows every security check of the protocols and of the sums that use them."""

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
    """What ends a sum is a check, passes on what a library or another check said, or is all that a function does."""
    for file in mutate.FILES:
        text = (mutate.SOURCE / "atoll" / file).read_text()
        nodes = list(ast.walk(ast.parse(text)))
        found = [node for node in nodes if mutate.is_check(node)]
        calls = sum(isinstance(node, ast.Expr) for node in found)
        assert text.count("refuse_if(") == calls + text.count("def refuse_if("), file
        handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
        known = {id(n) for node in (*found, *handlers) for n in ast.walk(node)}
        known |= {id(f.body[0]) for f in nodes if isinstance(f, ast.FunctionDef)}
        ends = [n for n in nodes if isinstance(n, ast.Raise) and mutate.called(n.exc) in ("Abort", "Refused")]
        assert all(id(n) in known for n in ends), file


def test_all_that_is_hashed_is_known_by_the_script() -> None:
    found = mutate.bindings()
    assert len(found) > 60
    assert {binding.file for binding in found} == set(mutate.BOUND)
    package = mutate.SOURCE / "atoll"
    packing = {
        str(path.relative_to(package)) for folder in ("crypto", "combine") for path in (package / folder).rglob("*.py")
        if "packed(" in path.read_text()
    }  # fmt: skip
    assert packing == set(mutate.BOUND)


def test_every_file_with_checks_is_known() -> None:
    package = mutate.SOURCE / "atoll"
    with_checks = {
        str(path.relative_to(package)) for folder in ("crypto", "combine") for path in (package / folder).rglob("*.py")
        if "refuse_if(" in path.read_text()
    }  # fmt: skip
    assert with_checks <= set(mutate.FILES)
    assert all(Path(mutate.HERE / test).exists() for test in mutate.TESTS)
