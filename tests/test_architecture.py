"""Imports point down only, and nothing heavy is imported early."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import atoll
from atoll.job.catalogue import PARTS
from counts import core, modules

SOURCE = Path(atoll.__file__).parent
# Each package imports itself and those before it, also inside functions.
ORDER = (
    "core", "metrics", "jit", "crypto", "privacy", "data", "models", "stages", "combine", "select", "stop", "methods",
    "programs",
    "attacks", "job", "journal", "report", "runtimes", "decide", "testing", "cli",
)  # fmt: skip


def imports(text: str) -> set[str]:
    """Return the packages of Atoll that a module imports, also inside functions, by public name or by a text."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module="atoll", names=names):
                found |= {atoll._NAMES.get(alias.name, f"atoll.{alias.name}") for alias in names}
            case ast.ImportFrom(module=str() as module, level=0):
                found.add(module)
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str() as said), *_]
            ):
                found |= {said} if name in ("import_module", "__import__", "find_spec") else set()
    paths = [name.split(".") for name in found]
    return {path[1] if len(path) > 1 else "all public names" for path in paths if path[0] == "atoll"}


@pytest.mark.parametrize(("text", "found"), [
    ("import atoll.cli.app", "cli"), ("def f():\n    from atoll.report import page", "report"),
    ("from atoll import simulate", "runtimes"), ("from atoll import data", "data"),
    ("import atoll", "all public names"), ("import_module('atoll.cli')", "cli"), ("__import__('atoll.job')", "job"),
    ("importlib.import_module('atoll.cli')", "cli"), ("if TYPE_CHECKING:\n    from atoll.cli.app import app", "cli"),
])  # fmt: skip
def test_every_way_to_import_is_found(text: str, found: str) -> None:
    assert imports(text) == {found}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if package != "__init__":
        above = imports(path.read_text()) - set(ORDER[: ORDER.index(package) + 1])
        assert not above, f"{package} stands below {sorted(above)}"


def test_every_part_that_a_job_file_names_stands_below_it() -> None:
    homes = {home.split(":")[0] for parts in PARTS.values() for home in parts.values()}
    assert {home.split(".")[1] for home in homes} <= set(ORDER[: ORDER.index("job")])


def test_imports_are_absolute() -> None:
    relative = [str(p) for p in SOURCE.rglob("*.py") for n in ast.walk(ast.parse(p.read_text()))
                if isinstance(n, ast.ImportFrom) and n.level]  # fmt: skip
    assert not relative


def test_only_public_names_stand_at_the_root() -> None:
    assert {p.name for p in SOURCE.iterdir() if p.is_file()} == {"__init__.py", "testing.py", "py.typed"}


def test_there_is_one_atomic_write() -> None:
    own = [
        str(p) for p in SOURCE.rglob("*.py")
        if p != SOURCE / "core" / "disk.py"
        and re.search(r"mkstemp|os\.re(place|name)|\.re(place|name)\(path\)|\.part\"\)\n", p.read_text())
    ]  # fmt: skip
    assert not own


def test_the_version_is_said_once_and_is_not_that_of_release_0_1() -> None:
    said = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    assert "version" in said["project"]["dynamic"]
    assert said["tool"]["hatch"]["version"]["path"] == "src/atoll/__init__.py"
    assert not atoll.__version__.startswith("0.1.")


def test_every_file_says_what_lives_in_it() -> None:
    silent = [str(p) for p in SOURCE.rglob("*.py") if not ast.get_docstring(ast.parse(p.read_text()))]
    assert not silent


def test_public_names_are_there() -> None:
    assert sorted(atoll.__all__) == atoll.__all__
    for name in atoll.__all__:
        assert getattr(atoll, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Fedavg': did you mean 'FedAvg'"):
        atoll.Fedavg  # noqa: B018


@pytest.mark.parametrize(
    "code", ["import atoll", "from atoll.cli.app import app", "import atoll.testing, atoll.job.job"]
)
def test_nothing_heavy_is_imported_early(code: str) -> None:
    heavy = (
        "('jax', 'torch', 'optax', 'sklearn', 'matplotlib', 'ray', 'grpc', 'pandas', 'pyarrow', 'dp_accounting', "
        "'scipy', 'tenseal')"
    )
    script = f"import sys; {code}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_core_stays_small() -> None:
    """The core is read at one go; all else is in other packages. Its lines are counted in one way only."""
    assert len(list(core(modules()))) <= 1200
