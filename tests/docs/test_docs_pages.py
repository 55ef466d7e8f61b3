"""What the pages show is true: Python blocks run, job files parse, links lead somewhere."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from pkgutil import resolve_name

import pytest

from atoll.job.file import JobFile, parse_any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Words of release 0.1, images of houses, doors, coins, voices and lagoons, and figures beside a target.
OLD = re.compile(
    r"\b(rooms?|halls?|conductor|seats?|sittings?|moderator|dialogue|crew|lagoons?|voices?|coins?|doors?|houses?|"
    r"order of talk|(go|goes|gone|went) on with|(go|goes) on by|the same bits|each way|of unbounded length|"
    r"(was|were) asked for \d|asked \d|at most [\d.]+ s was|goal of \d)\b",
    re.IGNORECASE,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return (line, text) of the blocks whose fence says exactly this language, and nothing such as no-run after it."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(2)), m.group(2)) for m in FENCE.finditer(text) if m.group(1) == language]


def named(pages: list[Path]) -> dict[str, object]:
    return {"argvalues": pages, "ids": [page.name for page in pages]}


@pytest.mark.parametrize("page", **named([page for page in PAGES if blocks(page, "python")]))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in ("models.md", "coming-from.md"):
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
    for line, text in blocks(page, "toml"):
        said = parse_any(text, f"{page.name}, line {line}")
        job = said.job if isinstance(said, JobFile) else said
        assert job.name != "job", "a job of the docs has a name"


@pytest.mark.parametrize("page", **named(PAGES))
def test_links_resolve(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", **named(PAGES[2:]))
def test_a_page_says_what_the_reader_can_do_shows_an_example_and_ends_with_its_limits(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.match(r"# .+\n\nAfter reading this page you (can|know) ", text)
    # The page of words side by side begins with them, and two pages are lists without limits of their own.
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if page.name != "coming-from.md":
        assert "```" in text[: text.index(f"## {sections[1]}")], "the example comes before the details"
    if page.name not in ("names.md", "sharp-edges.md"):
        assert sections[-1] in ("Limits", "Known limitations")


@pytest.mark.parametrize("page", **named(PAGES))
def test_pages_have_no_words_of_release_0_1_and_no_images(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = text.partition("## Words of release 0.1")[0]  # the one place that translates them
    text = re.sub(r"`[^`]*`", "", text)  # names of files and old names of fields
    found = OLD.search(text)
    assert not found, f"{page.name}: {found.group(0)!r} in {text[found.start() - 40 : found.end() + 40]!r}"


@pytest.mark.parametrize("page", **named(PAGES))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`(atoll(?:\.\w+)+)", text):
        resolve_name(name)
    for path in re.findall(r"`((?:tests|bench|examples|src)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    for file in re.findall(r"`(test_\w+\.py)`", text):
        assert list((ROOT / "tests").rglob(file)), f"{page.name} names {file}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = set(LINK.findall(PAGES[0].read_text(encoding="utf-8")))
    assert {page.relative_to(ROOT).as_posix() for page in PAGES[1:]} <= linked


def test_the_readme_shows_the_quick_example() -> None:
    shown = re.sub(r"#.*", "", blocks(PAGES[0], "python")[0][1])
    quick = (ROOT / "examples" / "quick.py").read_text(encoding="utf-8")
    for call in ('.split(20, by="shards", per_client=2, seed=0)', "hidden=(64,)", 'Target("test.accuracy", 0.9)'):
        assert call in shown
        assert call in quick


def test_catalogue_and_pages_agree() -> None:
    from atoll.data import SCHEMES, names
    from atoll.job.catalogue import PARTS

    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    places = {"method": "methods.md", "model": "models.md", "program": "roles.md"}
    for kind, parts in PARTS.items():
        text = pages[places.get(kind, "job-files.md")].lower()
        missing = [name for name in parts if name not in text and name.replace("_", "") not in text]
        assert not missing, f"no page tells of {kind} {missing}"
    assert all(f"`{name}`" in pages["data.md"] for name in [*names(), *SCHEMES])
