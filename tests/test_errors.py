"""Every exception class of Atoll has one base, a code of its own, and a sentence that is shown without a traceback."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.cli.app import known
from atoll.core.errors import AtollError, NotInstalled, Unwritable


def exceptions() -> list[type[BaseException]]:
    """Import all of Atoll; return the exception classes that it defines."""
    found = {AtollError}
    for module in pkgutil.walk_packages(atoll.__path__, "atoll."):
        for kind in vars(import_module(module.name)).values():
            if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__.startswith("atoll."):
                found.add(kind)
    return sorted(found, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


KINDS = exceptions()


def test_all_of_them_are_found() -> None:
    """As many as the sources define: none hides inside a function."""
    names, bases = set[str](), {name for name, kind in vars(builtins).items() if inspect.isclass(kind)}
    bases = {name for name in bases if issubclass(getattr(builtins, name), BaseException)} | {"AtollError"}
    trees = [ast.parse(path.read_text()) for path in Path(atoll.__file__).parent.rglob("*.py")]
    while True:  # until no class has a base that is new
        new = {
            node.name
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & (bases | names)
        }
        if new == names:
            break
        names = new
    assert names == {kind.__name__ for kind in KINDS}


PLAIN = ("ValueError", "TypeError", "KeyError", "AttributeError")
# Raises of built-in errors in modules that no public call refuses its arguments in: how many, and what they are.
INNER = {
    "__init__.py": (1, "what Python asks of a module without such a name"),
    "core/effects.py": (2, "the replies and the effects of a program"),
    "core/tree.py": (1, "the contribution of a method"),
    "core/world.py": (1, "the randomness of a stage"),
    "crypto/ckks.py": (14, "numbers of a protocol"),
    "crypto/field.py": (5, "numbers of a protocol"),
    "crypto/graph.py": (1, "numbers of a protocol"),
    "crypto/packing.py": (9, "numbers of a protocol"),
    "crypto/paillier.py": (16, "numbers of a protocol"),
    "crypto/products.py": (1, "numbers of a protocol"),
    "data/schema.py": (6, "made by msgspec, which refuses the file"),
    "runtimes/network/messages/calls.py": (1, "a server's or a party's process"),
    "runtimes/network/party/audit.py": (3, "a party's process"),
    "runtimes/network/party/policy.py": (6, "a party's process"),
    "runtimes/network/party/spending.py": (2, "a party's process"),
    "runtimes/network/server/disk.py": (1, "a server's process"),
    "runtimes/network/server/store.py": (5, "a server's process"),
    "stages/encodings.py": (12, "the bytes of a peer"),
}


def test_what_public_calls_refuse_is_an_error_of_atoll() -> None:
    """No raise of a built-in error in a module of parts: elsewhere each is counted."""
    source, found = Path(atoll.__file__).parent, dict[str, int]()
    for path in sorted(source.rglob("*.py")):
        raised = [node.exc for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        names = [ast.unparse(exc.func if isinstance(exc, ast.Call) else exc) for exc in raised if exc is not None]
        if count := sum(name in PLAIN for name in names):
            found[str(path.relative_to(source))] = count
    assert found == {file: count for file, (count, _) in INNER.items()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_exception_class_has_the_base_and_a_code_of_its_own(kind: Any) -> None:
    assert issubclass(kind, AtollError)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", vars(kind)["code"])


def test_codes_and_names_are_unique() -> None:
    for words in ([kind.code for kind in KINDS], [kind.__name__ for kind in KINDS]):  # type: ignore[attr-defined]
        assert len(words) == len(set(words))


@pytest.mark.parametrize(("name", "base"), [
    ("core.wire:Mismatch", ValueError), ("core.method:Diverged", ArithmeticError), ("core.errors:Unwritable", OSError),
    ("core.errors:NotInstalled", ImportError), ("data.errors:DataMissing", FileNotFoundError),
    ("job.catalogue:BadJob", ValueError), ("journal.read:NoRun", FileNotFoundError),
    ("crypto.keys:Refused", ValueError), ("runtimes.local.worker:PartyFailed", RuntimeError),
    ("runtimes.run:NoMetric", KeyError), ("runtimes.network.messages.calls:Unreachable", ConnectionError),
    ("runtimes.network.messages.calls:CannotListen", OSError), ("runtimes.network.trust.roster:NoKey", OSError),
    ("runtimes.network.party.policy:NotAllowed", ValueError),
])  # fmt: skip
def test_who_catches_a_built_in_error_still_does(name: str, base: type[Exception]) -> None:
    module, _, kind = name.partition(":")
    error = getattr(import_module(f"atoll.{module}"), kind)("one sentence")
    assert isinstance(error, base)
    assert str(error) == "one sentence"


def test_the_base_is_a_public_name() -> None:
    assert atoll.AtollError is AtollError
    with pytest.raises(atoll.AtollError):
        atoll.data.build({"use": "nonesuch"}, 0)


def test_any_of_them_is_one_line_on_the_command_line() -> None:
    class OfAPackage(AtollError):
        """A third-party part may raise its own."""

    for error in (OfAPackage("one sentence"), Unwritable("one sentence"), NotInstalled("one sentence")):
        assert known(error) == "one sentence"
    for fault in (ValueError("one sentence"), OSError("one sentence"), FileNotFoundError("x"), ImportError("x")):
        assert known(fault) is None


def test_the_command_line_ends_with_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from atoll.cli import main; main()", "status", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"atoll: {tmp_path} is no run folder")
    assert done.stderr.count("\n") == 1


def test_a_log_of_json_holds_the_code() -> None:
    script = (
        "from atoll.cli.logs import LogFormat, speaking\n"
        "from atoll.core.errors import Unwritable\n"
        "with speaking(LogFormat.json): raise Unwritable('cannot write')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = json.loads(done.stderr)
    assert (said["event"], said["code"], said["text"]) == ("failed", "unwritable", "cannot write")
