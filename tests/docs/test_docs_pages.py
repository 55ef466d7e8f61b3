"""What the pages show is true: Python blocks run, job files parse, links lead somewhere."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

from atoll.jobfile import from_table

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return (line, text) of the blocks whose fence says exactly this language, and nothing such as no-run after it."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(2)), m.group(2)) for m in FENCE.finditer(text) if m.group(1) == language]


def named(pages: list[Path]) -> dict[str, object]:
    return {"argvalues": pages, "ids": [page.name for page in pages]}


@pytest.mark.parametrize("page", **named([page for page in PAGES if blocks(page, "python")]))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "models.md":
        for package in ("flax", "equinox", "torch"):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for line, text in blocks(page, "python"):
        # Empty lines in front make a traceback point at the page.
        exec(compile("\n" * line + text, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize("page", **named([page for page in PAGES if blocks(page, "toml")]))
def test_job_files_parse(page: Path) -> None:
    for _, text in blocks(page, "toml"):
        said = from_table(tomllib.loads(text))
        assert said.job.name != "job", "a job of the docs has a name"


@pytest.mark.parametrize("page", **named(PAGES))
def test_links_resolve(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = set(LINK.findall(PAGES[0].read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= linked


def test_the_readme_shows_the_quick_example() -> None:
    shown = re.sub(r"#.*", "", blocks(PAGES[0], "python")[0][1])
    quick = (ROOT / "examples" / "quick.py").read_text(encoding="utf-8")
    for call in ('.split(20, by="shards", per_client=2, seed=0)', "hidden=(64,)", 'Target("test.accuracy", 0.9)'):
        assert call in shown
        assert call in quick


def test_catalogue_and_pages_agree() -> None:
    from atoll.catalogue import PARTS
    from atoll.data import SCHEMES, names

    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    places = {"method": "methods.md", "model": "models.md"}
    for kind, parts in PARTS.items():
        text = pages[places.get(kind, "job-files.md")].lower()
        missing = [name for name in parts if name not in text and name.replace("_", "") not in text]
        assert not missing, f"no page tells of {kind} {missing}"
    assert all(f"`{name}`" in pages["data.md"] for name in [*names(), *SCHEMES])
