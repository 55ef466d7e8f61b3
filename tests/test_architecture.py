"""Imports point down only, and nothing heavy is imported early."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import atoll

SOURCE = Path(atoll.__file__).parent
CORE = {"core"}
PARTS = CORE | {"stages", "combine", "select", "models", "data", "privacy", "crypto"}
JOB = PARTS | {"methods", "stop", "job", "catalogue", "jobfile", "jobs"}
MAY_IMPORT = {
    "core": CORE,
    "compiled": CORE,
    "crypto": {"crypto"},
    "privacy": CORE | {"compiled", "privacy", "crypto"},
    "attacks": CORE | {"attacks"},
    "stages": CORE | {"compiled", "stages", "privacy"},
    "combine": CORE | {"combine", "crypto"},
    "select": CORE | {"select"},
    "models": CORE | {"compiled", "models"},
    "data": CORE | {"data"},
    "methods": CORE | {"models", "methods"},
    "stop": CORE,
    "runtimes": CORE | {"runtimes", "crypto"},
    "journal": CORE | {"journal"},
    "report": JOB | {"report"},
    "testing": JOB,
    "catalogue": JOB,
    "job": PARTS,
    "jobfile": JOB,
    "run": JOB | {"runtimes", "journal", "report", "run"},
    "calibrate": JOB,
    "serve": JOB | {"runtimes", "journal", "run"},
    "seat": {"runtimes", "party"},
    "party": JOB | {"runtimes", "report", "serve", "seat"},
    "join": CORE | {"combine", "runtimes", "crypto", "party", "seat"},
    "edge": JOB | {"runtimes", "journal", "serve", "join", "party", "seat"},
    "compare": JOB | {"run"},
    "cli": JOB | {"runtimes", "journal", "report", "run", "compare", "calibrate", "serve", "join", "edge", "cli"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("atoll.")}
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room in ("__init__", "jobs"):
        return
    assert imports(path) <= MAY_IMPORT[room], f"{room} may import {sorted(MAY_IMPORT[room])}"


def test_every_file_says_what_lives_in_it() -> None:
    silent = [str(p) for p in SOURCE.rglob("*.py") if not ast.get_docstring(ast.parse(p.read_text()))]
    assert not silent


def test_public_names_are_there() -> None:
    assert sorted(atoll.__all__) == atoll.__all__
    for name in atoll.__all__:
        assert getattr(atoll, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Fedavg': did you mean 'FedAvg'"):
        atoll.Fedavg  # noqa: B018


@pytest.mark.parametrize("code", ["import atoll", "from atoll.cli.app import app", "import atoll.testing, atoll.job"])
def test_nothing_heavy_is_imported_early(code: str) -> None:
    heavy = (
        "('jax', 'torch', 'optax', 'sklearn', 'matplotlib', 'ray', 'grpc', 'pandas', 'pyarrow', 'dp_accounting', "
        "'scipy', 'tenseal')"
    )
    script = f"import sys; {code}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_core_stays_small() -> None:
    """The core is read in one sitting; a room for everything else is next door."""
    lines = sum(len(p.read_text().splitlines()) for p in (SOURCE / "core").glob("*.py"))
    assert lines <= 910
