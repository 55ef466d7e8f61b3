"""Every public name tells its purpose and its arguments, and has an example that runs by itself."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from types import ModuleType

import pytest

PACKAGES = (
    "atoll", "atoll.combine", "atoll.data", "atoll.journal", "atoll.methods", "atoll.metrics", "atoll.models",
    "atoll.privacy", "atoll.select", "atoll.stages", "atoll.stop", "atoll.testing",
)  # fmt: skip


def public() -> dict[str, object]:
    """Return the classes and functions that these packages export, by their address."""
    found = {}
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, ModuleType):
                found[f"{value.__module__}.{name}"] = value
    return found


def surface() -> dict[str, object]:
    """Return the classes and functions that docs/extend.md opens to parts without an `__all__`, by their address."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^A part imports from (.+?)\. ", page, re.MULTILINE | re.DOTALL)
    found = {}
    for package in re.findall(r"`(atoll[\w.]*)`", sentence):
        module = import_module(package)
        if not hasattr(module, "__all__"):
            inner = [
                module,
                *(resolve_name(m.name) for m in iter_modules(getattr(module, "__path__", ()), f"{package}.")),
            ]
            named = ((m.__name__, name, value) for m in inner for name, value in vars(m).items() if name[0] != "_")
            found |= {f"{at}.{n}": v for at, n, v in named if callable(v) and getattr(v, "__module__", "") == at}
    return found


NAMES = public()
DECLARED = NAMES | surface()


def arguments(value: object) -> list[str]:
    """Return the arguments that a caller gives; exceptions and protocols have none of their own."""
    if inspect.isclass(value) and (issubclass(value, Exception) or getattr(value, "_is_protocol", False)):
        return []
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [kinds.get(p.kind, "") + p.name for p in inspect.signature(value).parameters.values()]  # type: ignore[arg-type]


def test_the_surface_for_parts_is_found() -> None:
    core = {
        f"atoll.core.{name}" for name in ("method.Phase", "wire.Codec", "effects.ask", "program.Role", "tree.Schema")
    }
    assert core | {"atoll.methods.trained.Alone"} <= DECLARED.keys()


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_the_docstring_names_every_argument(name: str) -> None:
    text = inspect.cleandoc(DECLARED[name].__doc__ or "")
    assert re.match(r"\S.*[.:?](\n|$)", text), "the first line is a sentence that `atoll list` shows"
    _, _, after = text.partition("\nArgs:\n")
    said = re.findall(r"^    (\*{0,2}\w+): \S", after.partition("\n\n")[0], re.MULTILINE)
    assert said == arguments(DECLARED[name])


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("flax", "equinox", "torch"):
        if f"import {package}" in (NAMES[name].__doc__ or "") or f"from {package} " in (NAMES[name].__doc__ or ""):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    examples = doctest.DocTestFinder(recurse=False).find(NAMES[name], name, globs={})
    assert any(test.examples for test in examples), "there is no example"
    runner = doctest.DocTestRunner(verbose=False)
    for test in examples:
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
