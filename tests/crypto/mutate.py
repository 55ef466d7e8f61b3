"""Takes every refusal out of the package, one at a time, and asks the tests whether they notice.

So too with every value that is hashed into what parties sign and derive (what was agreed is bound as long as it is in
there), and with every limit that a message's fields have. Run it as a script: it prints a table and the score, and
fails unless some test misses everything that is gone. `crypto` or `network` keeps it to one suite,
names of files (`python tests/crypto/mutate.py crypto/terms.py`) to them; `--all` also runs the tests of real processes,
which take minutes.

All refusals stand in one copy of the package, each with a switch. Tests are imported and collected once; a copy of that
process (a fork) runs a test with one refusal switched off.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
TESTS = HERE.parent
SOURCE = HERE.parents[1] / "src"


class Suite(NamedTuple):
    """Files, and the tests that miss their refusals; `slow` ones, by file or by their mark, run with `--all`."""

    folder: str
    ends: tuple[str, ...]  # errors that refuse a peer; none named: all
    files: tuple[str, ...]
    tests: tuple[str, ...]
    slow: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()  # files of values that are hashed
    bound_tests: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()  # files of messages whose fields have limits
    field_tests: tuple[str, ...] = ()


def named(pattern: str, names: str) -> tuple[str, ...]:
    return tuple(pattern.format(name) for name in names.split())


CRYPTO = Suite(
    "crypto",
    ("Abort", "Refused"),
    named("crypto/{}.py", "keys records lists terms mask shamir graph additive holders light rehearse secagg/policy "
          "secagg/client secagg/server") + named("combine/{}.py", "protocol secure light encrypted"),
    named("test_crypto_{}.py", "malicious refusals holders light_refusals bound lists"),
    bound=named("crypto/{}.py", "keys terms secagg/messages holders light")
    + named("combine/{}.py", "protocol secure light encrypted"),
    bound_tests=("test_crypto_terms.py",),
)  # fmt: skip
PEERS = Suite(
    "network",
    (),
    named("runtimes/network/{}.py", "edge transport messages/envelope messages/payload messages/trees party/assess "
          "party/audit party/budget party/line party/join party/join_roles party/memory party/policy party/roles "
          "party/spending server/hub server/collect server/store trust/proxy trust/roster trust/successor trust/tls")
    + named("{}.py", "core/question data/schema"),
    named("test_network_{}.py", "policy hub budget message layout payload keys store records party audit memory tls "
          "transport proxy access answers schema peer_text evaluation refusals limits roles edge"),
    named("test_network_{}.py", "trust liars quorum"),
    fields=named("runtimes/network/messages/{}.py", "envelope trees") + named("{}.py", "core/question data/schema"),
    field_tests=("test_network_records.py",),
)  # fmt: skip
SUITES = (CRYPTO, PEERS)
VERDICTS = {"late", "foreign", "again", "closed"}  # of an answer that does not count

# What the copy of the package calls: a module of its own, so that processes which tests start find it, too.
SWITCH = """
import os
off, record = int(os.environ.get("ATOLL_OFF", "-1")), os.environ.get("ATOLL_FIRED", "")
def check(number, condition):
    if condition and record:
        with open(record, "a") as file:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
            file.write(f"{number} {test}\\n")
    return False if number == off else condition
def kept(number, *values):
    return () if number == off else values
"""


class Mutant(NamedTuple):
    """A refusal, a bound value or a limit of a field: where it is, and what it says."""

    file: str
    line: int
    column: int
    place: int  # of a value in what is packed, or of a limit among those of a field
    said: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.said[:70]}"


def called(node: ast.AST | None) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def objects(node: ast.stmt) -> bool:
    """Whether a statement ends in a refusal: an error, an objection of a policy, a verdict on an answer."""
    if isinstance(node, ast.Raise):
        return node.exc is not None
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield):
        return isinstance(node.value.value, ast.Call | ast.JoinedStr)
    said = ast.walk(node.value) if isinstance(node, ast.Return) and node.value else ()
    return any(isinstance(n, ast.Constant) and n.value in VERDICTS for n in said)


def is_check(node: ast.AST) -> bool:
    """One `refuse_if(condition, …)`, or `if condition:` and a refusal."""
    if isinstance(node, ast.If):
        return objects(node.body[-1])
    return isinstance(node, ast.Expr) and called(node.value) == "refuse_if"


def condition_of(node: Any) -> ast.expr:
    return node.test if isinstance(node, ast.If) else node.value.args[0]


def parsed(file: str) -> ast.Module:
    return ast.parse((SOURCE / "atoll" / file).read_text())


def outside_of_handlers(tree: ast.AST) -> Iterator[Any]:
    """All nodes but those that pass on what a library or another check has said, and the refusal by itself."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.ExceptHandler) and getattr(node, "name", "") != "refuse_if":
            yield node
            yield from outside_of_handlers(node)


def check_nodes(tree: ast.AST, ends: tuple[str, ...] = ()) -> list[Any]:
    found = filter(is_check, outside_of_handlers(tree))
    return sorted((n for n in found if not ends or error_of(n) in (*ends, "")), key=lambda n: (n.lineno, n.col_offset))


def error_of(node: Any) -> str:
    """The error that a check ends in, if it raises one itself."""
    last = node.body[-1] if isinstance(node, ast.If) else None
    return called(last.exc) if isinstance(last, ast.Raise) else ""


def checks(suite: Suite) -> list[Mutant]:
    return [
        Mutant(file, n.lineno, n.col_offset, 0, ast.unparse(condition_of(n)))
        for file in suite.files for n in check_nodes(parsed(file), suite.ends)
    ]  # fmt: skip


def calls_packed(node: ast.AST) -> bool:
    return called(node) == "packed"


def packed_values(node: Any) -> list[ast.expr]:
    """What stands in a call of `packed`, or in a tuple that is read."""
    if isinstance(node, ast.Call):
        return node.args if calls_packed(node) else []
    return node.elts if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) else []


def is_label(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())


def packing_nodes(tree: ast.AST) -> list[Any]:
    """All values of functions that pack some; labels are the same in every sum."""
    functions = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and any(map(calls_packed, ast.walk(f)))]
    return [node for f in functions for part in f.body for node in ast.walk(part) if packed_values(node)]


def bindings(suite: Suite) -> list[Mutant]:
    return [
        Mutant(file, node.lineno, node.col_offset, k, ast.unparse(value))
        for file in suite.bound for node in packing_nodes(parsed(file)) for k, value in enumerate(packed_values(node))
        if not is_label(value) and not calls_packed(value)
    ]  # fmt: skip


def limited(node: Any) -> list[ast.keyword]:
    """The limits of a field (`Meta(…)`), or that a record has no others."""
    if isinstance(node, ast.ClassDef):
        return [k for k in node.keywords if k.arg == "forbid_unknown_fields"]
    return node.keywords if called(node) == "Meta" else []


def limits(suite: Suite) -> list[Mutant]:
    return [
        Mutant(file, node.lineno, node.col_offset, k, f"{ast.unparse(node).splitlines()[0][:45]} without {limit.arg}")
        for file in suite.fields for node in ast.walk(parsed(file)) for k, limit in enumerate(limited(node))
    ]  # fmt: skip


def switch(name: str, number: int, value: ast.expr) -> ast.Call:
    call = ast.parse(f"__import__('atoll_switch').{name}({number})", mode="eval").body
    assert isinstance(call, ast.Call)
    call.args.append(value)
    return call


def with_switches(package: Path, suite: Suite, refusals: list[Mutant], values: list[Mutant]) -> None:
    """Write the package with a switch at each refusal and each bound value: they are numbered in this order."""
    numbers = {mutant[:4]: at for at, mutant in enumerate(values, len(refusals))}
    for file in {*suite.files, *suite.bound}:
        tree = parsed(file)
        refusing, packing = check_nodes(tree, suite.ends), packing_nodes(tree)
        for node in packing if file in suite.bound else []:
            held = packed_values(node)
            for k, value in enumerate(list(held)):
                at = numbers.get((file, node.lineno, node.col_offset, k))
                if at is not None:
                    held[k] = ast.Starred(switch("kept", at, value), ast.Load())
        first = next((at for at, mutant in enumerate(refusals) if mutant.file == file), 0)
        for at, node in enumerate(refusing if file in suite.files else [], first):
            if isinstance(node, ast.If):
                node.test = switch("check", at, node.test)
            else:
                node.value.args[0] = switch("check", at, node.value.args[0])
        write(package, file, tree)


def write(package: Path, file: str, tree: ast.AST) -> None:
    (package / "atoll" / file).write_text(ast.unparse(ast.fix_missing_locations(tree)))


def in_child(work: Callable[[], int], within: int = 0) -> int:
    """Do the work in a copy of this process, quietly and for some seconds at most."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.alarm(within)
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Loop:
    """A loop over tests that are collected once; copies of this process run some of them."""

    def __init__(self, work: Callable[[Loop], None]) -> None:
        self.work, self.items, self.failed, self.took = work, dict[str, Any](), list[str](), Counter[str]()

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.took[report.nodeid] += report.duration
        self.failed += [report.nodeid] if report.failed else []

    def here(self, tests: list[str], off: int = -1, fired: str = "") -> int:
        """Run tests with one thing switched off; note which refusals they meet."""
        import atoll_switch

        atoll_switch.off, atoll_switch.record = off, fired
        os.environ |= {"ATOLL_OFF": str(off), "ATOLL_FIRED": fired}
        items = [self.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return len(self.failed)

    def noted(self, tests: list[str], package: Path) -> tuple[dict[int, set[str]], dict[str, float]]:
        """Run all tests as they are. Return those that meet each refusal, and how long each takes."""
        fired, found = package / "fired", package / "found"

        def work() -> int:
            self.here(tests, fired=str(fired))
            found.write_text(json.dumps([self.failed, self.took]))
            return 0

        in_child(work)
        failed, took = json.loads(found.read_text())
        if failed:
            sys.exit(f"these tests fail as they are, mend them first: {failed}")
        able: dict[int, set[str]] = {}
        for line in fired.read_text().splitlines():
            number, _, test = line.partition(" ")
            able.setdefault(int(number), set()).add(test)
        return able, took


def run(package: Path, folder: str, tests: tuple[str, ...], loop: Loop | None = None) -> int:
    import pytest

    sys.path.insert(0, str(package))
    os.environ |= {"PYTHONPATH": str(package), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.chdir(TESTS / folder)
    marked = "nightly or not nightly" if "--all" in sys.argv else "not slow and not nightly"
    options = ["-q", "--assert=plain", "-p", "no:cacheprovider", f"--basetemp={package / 'tmp'}", "-m", marked]
    options += ["-k", "not could_run_code"]  # such as a switch is made of
    options += [] if loop else ["-x", "--noconftest"]
    return int(pytest.main([*options, *tests], plugins=[loop] if loop else []))


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def survivors(package: Path, suite: Suite, tests: tuple[str, ...], only: set[str]) -> int:
    """Switch off one refusal and one bound value after the other; count those that no test misses."""
    refusals, values = checks(suite), bindings(suite)
    with_switches(package, suite, refusals, values)
    out = os.dup(1)
    kept = [m for m in [*refusals, *values] if not only or m.file in only]

    def work(loop: Loop) -> None:
        binding = [test for test, item in loop.items.items() if item.path.name in suite.bound_tests]
        able, took = loop.noted([test for test in loop.items if test not in binding], package)
        missed = 0
        for at, mutant in enumerate([*refusals, *values]):
            if mutant in kept:
                some = sorted(able.get(at, ()), key=took.__getitem__) if mutant in refusals else binding
                killed = any(in_child(partial(loop.here, [test], at), 20 + 5 * int(took.get(test, 0))) for test in some)
                missed += not killed
                os.write(out, f"{'killed  ' if killed else 'SURVIVED'} {mutant}\n".encode())
        (package / "missed").write_text(json.dumps(missed))

    (package / "missed").unlink(missing_ok=True)
    in_child(lambda: run(package, suite.folder, tests + suite.bound_tests, Loop(work)))
    if not (package / "missed").exists():
        sys.exit("the tests fail as they are: mend them first")
    missed = int(json.loads((package / "missed").read_text()))
    tell(f"{len(kept) - missed} of {len(kept)} refusals and bound values of {suite.folder} are guarded by a test")
    return missed


def unlimited(package: Path, suite: Suite, only: set[str]) -> int:
    """Take away one limit of a field after the other; count those that nobody misses."""
    every, missed = [limit for limit in limits(suite) if not only or limit.file in only], 0
    for limit in every:
        tree = parsed(limit.file)
        found = [n for n in ast.walk(tree) if limited(n) and (n.lineno, n.col_offset) == (limit.line, limit.column)]
        del found[0].keywords[found[0].keywords.index(limited(found[0])[limit.place])]
        write(package, limit.file, tree)
        killed = in_child(lambda: run(package, suite.folder, suite.field_tests), 120) != 0
        shutil.copy(SOURCE / "atoll" / limit.file, package / "atoll" / limit.file)
        missed += not killed
        tell(f"{'killed  ' if killed else 'SURVIVED'} {limit}")
    tell(f"{len(every) - missed} of {len(every)} limits of fields are guarded by a test")
    return missed


def main() -> int:
    import cryptography.hazmat.primitives.ciphers.aead
    import gmpy2
    import msgspec
    import numpy as np
    import pytest

    assert all((cryptography, gmpy2, msgspec, np, pytest))
    sys.dont_write_bytecode = True  # or a child might load what another child compiled
    wanted = {suite.folder for suite in SUITES} & {*sys.argv}
    only, missed = {*sys.argv[1:]} - {"--all"} - wanted, 0
    for suite in SUITES if not wanted else [suite for suite in SUITES if suite.folder in wanted]:
        tests = suite.tests + (suite.slow if "--all" in sys.argv else ())
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder)
            shutil.copytree(SOURCE / "atoll", package / "atoll", ignore=shutil.ignore_patterns("__pycache__"))
            (package / "atoll_switch.py").write_text(SWITCH)
            if not only or only & {*suite.fields}:
                missed += unlimited(package, suite, only)
            if not only or only & {*suite.files, *suite.bound}:
                missed += survivors(package, suite, tests, only)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
