"""Takes every security check out of the package, one at a time, and asks the tests whether they notice.

So too with every value that is hashed into what parties sign and derive: what was agreed is bound as long as it is in
there. Run it as a script: it prints a table and the score, and fails unless some test misses everything that is gone.
Names of files (`python tests/crypto/mutate.py crypto/terms.py`) keep it to them.
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
FILES = [
    *(f"crypto/{n}.py" for n in ("keys", "records", "lists", "terms", "mask", "shamir", "graph", "additive", "holders",
                                 "light", "rehearse", "secagg/policy", "secagg/client", "secagg/server")),
    *(f"combine/{n}.py" for n in ("protocol", "secure", "light", "encrypted")),
]  # fmt: skip
TESTS = [
    "test_crypto_malicious.py", "test_crypto_refusals.py", "test_crypto_holders.py", "test_crypto_light_refusals.py",
    "test_crypto_bound.py", "test_crypto_lists.py",
]  # fmt: skip
BOUND = [
    *(f"crypto/{n}.py" for n in ("keys", "terms", "secagg/messages", "holders", "light")),
    *(f"combine/{n}.py" for n in ("protocol", "secure", "light", "encrypted")),
]  # fmt: skip
BOUND_TEST = "test_crypto_terms.py"


class Check(NamedTuple):
    """One `refuse_if(condition, sentence)`, or `if condition: raise Abort(sentence)` where types are told by it."""

    file: str
    line: int
    condition: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.condition[:70]}"


def called(node: ast.AST | None) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def is_check(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        last = node.body[-1]
        return isinstance(last, ast.Raise) and called(last.exc) in ("Abort", "Refused")
    return isinstance(node, ast.Expr) and called(node.value) == "refuse_if"


def condition_of(node: ast.AST) -> ast.expr:
    return node.test if isinstance(node, ast.If) else node.value.args[0]


def checks() -> list[Check]:
    found = []
    for file in FILES:
        tree = ast.parse((SOURCE / "atoll" / file).read_text())
        nodes = sorted((n for n in ast.walk(tree) if is_check(n)), key=lambda n: n.lineno)
        found += [Check(file, n.lineno, ast.unparse(condition_of(n))) for n in nodes]
    return found


class Binding(NamedTuple):
    """One value that is packed for a hash, a signature or a key."""

    file: str
    line: int
    where: tuple[int, str]  # column and kind of the call or tuple that has it
    place: int
    value: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.value[:70]}"


def calls_packed(node: ast.AST) -> bool:
    return called(node) == "packed"


def packed_values(node: ast.AST) -> list[ast.expr]:
    """What stands in a call of `packed`, or in a tuple that is read."""
    if isinstance(node, ast.Call):
        return node.args if calls_packed(node) else []
    return node.elts if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) else []


def is_label(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())


def bindings() -> list[Binding]:
    """All values of functions that pack some; labels are the same in every sum."""
    found = []
    for file in BOUND:
        tree = ast.parse((SOURCE / "atoll" / file).read_text())
        functions = [
            f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and any(map(calls_packed, ast.walk(f)))
        ]
        for node in (n for f in functions for part in f.body for n in ast.walk(part)):
            values = enumerate(packed_values(node))
            found += [
                Binding(file, node.lineno, (node.col_offset, type(node).__name__), k, ast.unparse(value))
                for k, value in values if not is_label(value) and not calls_packed(value)
            ]  # fmt: skip
    return found


class Forget(ast.NodeTransformer):
    """One value is not packed."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        values, gone = packed_values(node), self.binding
        if values and (node.lineno, (node.col_offset, type(node).__name__)) == (gone.line, gone.where):
            del values[gone.place]
        return node


class Remove(ast.NodeTransformer):
    """The check at one line becomes nothing."""

    def __init__(self, line: int) -> None:
        self.line = line

    def visit(self, node: ast.AST) -> ast.AST:
        if is_check(node) and node.lineno == self.line:
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


class Monitor(ast.NodeTransformer):
    """Every check tells when it fires."""

    def __init__(self, file: str) -> None:
        self.file = file

    def visit(self, node: ast.AST) -> ast.AST:
        if is_check(node):
            seen = ast.parse(f"watch_check({self.file!r}, {node.lineno})", mode="eval").body
            seen.args.append(condition_of(node))
            if isinstance(node, ast.If):
                node.test = seen
            else:
                node.value.args[0] = seen
        return self.generic_visit(node)


def rewrite(package: Path, file: str, change: ast.NodeTransformer) -> None:
    tree = change.visit(ast.parse((SOURCE / "atoll" / file).read_text()))
    (package / "atoll" / file).write_text(ast.unparse(ast.fix_missing_locations(tree)))


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
        rewrite(package, file, Monitor(file))
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
    every, missed = [check for check in checks() if check.file in (sys.argv[1:] or FILES)], 0
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(SOURCE / "atoll", package / "atoll", ignore=shutil.ignore_patterns("__pycache__"))
        sys.dont_write_bytecode = True  # or a child might load what another child compiled
        tests = fired(package)
        for check in every:
            for file in FILES:
                shutil.copy(SOURCE / "atoll" / file, package / "atoll" / file)
            rewrite(package, check.file, Remove(check.line))
            able = tests.get(f"{check.file}:{check.line}", [])
            killed = any(in_child(partial(run, package, [test])) == 1 for test in able)
            missed += not killed
            say(f"{'killed  ' if killed else 'SURVIVED'} {check}")
        say(f"{len(every) - missed} of {len(every)} checks are guarded by a test")
        return int(missed + unbound(package) > 0)


def unbound(package: Path) -> int:
    """Count the values that nobody misses."""
    every, missed = [binding for binding in bindings() if binding.file in (sys.argv[1:] or BOUND)], 0
    for binding in every:
        for file in {*FILES, *BOUND}:
            shutil.copy(SOURCE / "atoll" / file, package / "atoll" / file)
        rewrite(package, binding.file, Forget(binding))
        killed = in_child(partial(run, package, [BOUND_TEST])) != 0
        missed += not killed
        say(f"{'killed  ' if killed else 'SURVIVED'} {binding}")
    say(f"{len(every) - missed} of {len(every)} bound values are guarded by a test")
    return missed


if __name__ == "__main__":
    sys.exit(main())
