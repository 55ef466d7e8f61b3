"""Takes every security check out of the package, one at a time, and asks the tests whether they notice.

Run it as a script: it prints a table and the score, and fails unless some test misses every check that is gone.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
FILES = ["keys.py", "mask.py", "shamir.py", "graph.py", "additive.py", "holders.py", *(f"secagg/{n}.py" for n in (
    "messages", "policy", "client", "server", "rehearse"))]  # fmt: skip
TESTS = ["test_crypto_malicious.py", "test_crypto_refusals.py", "test_crypto_holders.py"]


class Check(NamedTuple):
    """One `refuse_if(condition, sentence)`."""

    file: str
    line: int
    condition: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.condition[:70]}"


def is_check(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "refuse_if"


def checks() -> list[Check]:
    found = []
    for file in FILES:
        tree = ast.parse((SOURCE / "atoll/crypto" / file).read_text())
        nodes = sorted((n for n in ast.walk(tree) if is_check(n)), key=lambda n: n.lineno)
        found += [Check(file, n.lineno, ast.unparse(n.value.args[0])) for n in nodes]
    return found


class Remove(ast.NodeTransformer):
    """The check at one line becomes nothing."""

    def __init__(self, line: int) -> None:
        self.line = line

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if is_check(node) and node.lineno == self.line else node


class Watch(ast.NodeTransformer):
    """Every check tells when it fires."""

    def __init__(self, file: str) -> None:
        self.file = file

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if is_check(node):
            seen = ast.parse(f"watch_check({self.file!r}, {node.lineno})", mode="eval").body
            seen.args.append(node.value.args[0])
            node.value.args[0] = seen
        return node


def rewrite(package: Path, file: str, change: ast.NodeTransformer) -> None:
    tree = change.visit(ast.parse((SOURCE / "atoll/crypto" / file).read_text()))
    (package / "atoll/crypto" / file).write_text(ast.unparse(ast.fix_missing_locations(tree)))


def in_child(work: Callable[[], int]) -> int:
    """Do the work in a copy of this process, quietly: libraries are imported once, for all."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(package: Path, tests: list[str]) -> int:
    import pytest

    sys.path.insert(0, str(package))
    os.chdir(HERE)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return int(pytest.main(["-x", "-q", "--noconftest", "--assert=plain", "-p", "no:cacheprovider", *tests]))


def fired(package: Path) -> dict[str, list[str]]:
    """Which tests make which check fire."""
    record = package / "fired.json"

    def work() -> int:
        seen: dict[str, set[str]] = {}

        def watch(file: str, line: int, condition: object) -> object:
            if condition:
                test = os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0]
                seen.setdefault(f"{file}:{line}", set()).add(test.rsplit("/", 1)[-1])
            return condition

        builtins.watch_check = watch  # type: ignore[attr-defined]
        code = run(package, TESTS)
        record.write_text(json.dumps({check: sorted(tests) for check, tests in seen.items()}))
        return code

    for file in FILES:
        rewrite(package, file, Watch(file))
    if in_child(work) != 0:
        sys.exit("the tests fail as they are: mend them first")
    return json.loads(record.read_text())


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    import cryptography.hazmat.primitives.ciphers.aead
    import gmpy2
    import msgspec
    import numpy as np
    import pytest

    assert all((cryptography, gmpy2, msgspec, np, pytest))
    every, missed = checks(), 0
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(SOURCE / "atoll", package / "atoll", ignore=shutil.ignore_patterns("__pycache__"))
        sys.dont_write_bytecode = True  # or a child might load what another child compiled
        tests = fired(package)
        for check in every:
            for file in FILES:
                shutil.copy(SOURCE / "atoll/crypto" / file, package / "atoll/crypto" / file)
            rewrite(package, check.file, Remove(check.line))
            able = tests.get(f"{check.file}:{check.line}", [])
            killed = any(in_child(partial(run, package, [test])) == 1 for test in able)
            missed += not killed
            say(f"{'killed  ' if killed else 'SURVIVED'} {check}")
    say(f"{len(every) - missed} of {len(every)} checks are guarded by a test")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
