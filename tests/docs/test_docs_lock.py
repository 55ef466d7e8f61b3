"""What the two commands install: locks that hold all that the package asks for, by hash, and the bill made of them."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements"
LINE = re.compile(r"[a-z0-9-]+==[0-9][\w.!]*( --hash=sha256:[0-9a-f]{64})+")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"requirements_{name}", LOCKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def asked(*extras: str) -> list[Requirement]:
    """All that pyproject.toml asks for with these extras, which may name others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, todo = [Requirement(one) for one in project["dependencies"]], list(extras)
    while todo:
        for one in map(Requirement, project["optional-dependencies"][todo.pop()]):
            if one.name == "atoll":
                todo += one.extras
            else:
                found.append(one)
    return found


@pytest.mark.parametrize(("command", "extras"), [("start", ()), ("check", ("test",))])
def test_a_lock_has_all_that_the_package_asks_for(command: str, extras: tuple[str, ...]) -> None:
    locked = {canonicalize_name(name): version for name, version in script("sbom").locked(command)}
    for one in asked(*extras):
        assert one.specifier.contains(locked[canonicalize_name(one.name)]), f"run python requirements/lock.py: {one}"


@pytest.mark.parametrize("command", ["start", "check"])
def test_a_lock_holds_names_and_hashes_only(command: str) -> None:
    """But for two lines of comment, and what is pinned by its version because no registry has the file."""
    _, kind, *lines = (LOCKS / f"{command}.txt").read_text().splitlines()
    assert re.fullmatch(r"# for: cpython 3\.11 linux x86_64 glibc", kind)
    loose = [line for line in lines if line.startswith("#")]
    assert loose == (["# by version: torch==2.13.0"] if command == "check" else [])
    assert "torch==2.13.0\n" in (ROOT / "check").read_text()
    for line in lines:
        assert line in loose or LINE.fullmatch(line), line


def test_the_bill_is_that_of_the_locks() -> None:
    made = script("sbom")
    text = (LOCKS / "sbom.cdx.json").read_text()
    assert text == made.bill(), "run python requirements/sbom.py"
    assert "://" not in text
    said = json.loads(text)
    assert (said["bomFormat"], said["specVersion"]) == ("CycloneDX", "1.5")
    refs = [part["bom-ref"] for part in said["components"]]
    assert len(set(refs)) == len(refs) == len(made.locked("start") | made.locked("check"))
    assert [part["name"] for part in said["components"] if "hashes" not in part] == ["torch"]


@pytest.mark.parametrize("command", ["start", "check"])
def test_where_a_lock_does_not_fit_the_command_says_so(command: str, tmp_path: Path) -> None:
    """The part of the command that decides, with a lock for another machine, then with the one that fits this."""
    text = (ROOT / command).read_text()
    (body,) = re.findall(r"^fits\(\) \{$.*?^\}$", text, re.MULTILINE | re.DOTALL)
    fitting = (LOCKS / f"{command}.txt").read_text()
    here = script("lock").kind()
    for kind, words in ((here, ""), ("cpython 3.4 plan9 vax", f"{command}: the lock is for cpython 3.4 plan9 vax and")):
        lock = tmp_path / "lock.txt"
        lock.write_text(re.sub(r"# for: .*", f"# for: {kind}", fitting))
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "python").unlink(missing_ok=True)
        (tmp_path / "bin" / "python").symlink_to(sys.executable)
        shell = f"set -eu\nvenv={tmp_path}\nlock={lock}\n{body}\nif fits; then echo locked; else echo free; fi"
        done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
        assert done.stdout == ("locked\n" if kind == here else "free\n")
        assert done.stderr.startswith(words)
        assert bool(done.stderr) == bool(words)


@pytest.mark.nightly
def test_another_file_under_a_locked_name_is_refused(tmp_path: Path) -> None:
    """A mirror that gives other bytes: pip stops, and nothing is installed."""
    venv.create(tmp_path / "env", with_pip=True)
    line = next(x for x in (LOCKS / "start.txt").read_text().splitlines() if x.startswith("mdurl=="))
    (tmp_path / "lock.txt").write_text(re.sub(r"sha256:\w+", "sha256:" + 64 * "0", line) + "\n")
    words = [str(tmp_path / "env" / "bin" / "pip"), "install", "--no-deps", "--require-hashes", "-r"]
    done = subprocess.run([*words, str(tmp_path / "lock.txt")], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr + done.stdout
    shutil.rmtree(tmp_path / "env")
