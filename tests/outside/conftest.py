"""What tests of parts from outside share: the cast of the network's tests, and the parts as an installed package."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "network"))

ENTRIES = {
    "method.outside_scaffold": "parts.drift:Scaffold",
    "method.outside_fedlin": "parts.drift:FedLin",
    "method.outside_boost": "parts.trees:Boost",
    "method.outside_componentwise": "parts.componentwise:Componentwise",
    "method.outside_valued": "parts.active:Valued",
    "method.outside_ditto": "parts.personal:Ditto",
    "method.outside_fedper": "parts.personal:FedPer",
    "select.outside_active": "parts.active:Active",
    "select.outside_rest": "parts.componentwise:Rest",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the parts as the distribution `outside`; return the folder that has it."""
    site = tmp_path / "site"
    shutil.copytree(HERE / "parts", site / "parts", ignore=shutil.ignore_patterns("__pycache__"))
    about = site / "outside-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = "".join(f"{name} = {path}\n" for name, path in ENTRIES.items())
    (about / "entry_points.txt").write_text(f"[atoll.parts]\n{points}")
    files = [path.relative_to(site) for path in sorted(site.rglob("*")) if path.is_file()]
    (about / "RECORD").write_text("".join(f"{file.as_posix()},,\n" for file in files))
    monkeypatch.syspath_prepend(str(site))
    return site
