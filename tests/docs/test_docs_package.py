"""The package of the page on own parts, as the page shows it: it installs, passes its checks, runs alone and served."""

from __future__ import annotations

import os
import re
import socket
import sysconfig
import venv
from pathlib import Path

import pytest

import spawn

pytest.importorskip("grpc")

ROOT = Path(__file__).resolve().parents[2]
FILE = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_COMMANDS = 10  # from an empty folder to a trained model


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Write the files of the page into a folder."""
    page = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    for name, text in FILE.findall(page):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "package"


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Make an environment that has what this one has, and that packages can be installed into; return its commands."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    inside = {"base": str(folder), "platbase": str(folder)}
    outer = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(sysconfig.get_path("purelib", "venv", inside)) / "outer.pth").write_text(outer)
    python, made = folder / "bin" / "python", folder / "bin"
    # The build uses the setuptools that are here: an isolated one would fetch its own.
    pip = "import sys\nfrom pip import main\nsys.exit(main([*sys.argv[1:], '--no-index', '--no-build-isolation']))\n"
    for name, code in (("pip", pip), ("atoll", "from atoll.cli import main\nmain()\n")):
        (made / name).write_text(f"#!{python}\n{code}")
        (made / name).chmod(0o755)
    return made


def ran(commands: Path, folder: Path, *command: str) -> str:
    paths = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    done = spawn.run(
        command, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout + done.stderr)


@pytest.mark.slow
def test_the_package_installs_passes_its_checks_and_runs(package: Path, commands: Path) -> None:
    ran(commands, package, "pip", "install", ".")
    ran(commands, package, "python", "test_parts.py")
    assert "centroids (from centroids 0.1)" in ran(commands, package, "atoll", "list", "method")
    text = ran(commands, package, "atoll", "run", "job.toml")
    assert "its only round is done" in text
    assert re.search(r"test\.(accuracy|error_rate) 0\.\d+", text)
    ran(commands, package, "atoll", "run", "job.toml", "--set", "select.use=centroids:Window")


@pytest.mark.slow
def test_the_commands_of_the_page_train_it_between_two_parties(package: Path, commands: Path) -> None:
    script = package / "federate.sh"
    lines = script.read_text().splitlines()
    assert len(lines) <= MOST_COMMANDS
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script.write_text(script.read_text().replace(":7100", f":{port}"))
    text = ran(commands, package, "sh", "-e", script.name)
    assert "centroids: centroids, 2 parties (2 a round)" in text
    assert "ended: its only round is done" in text
    assert (package / "served" / "model.safetensors").is_file()
    for party in ("ada", "ben"):
        assert '"asked":"train/contribute"' in (package / party / "audit.jsonl").read_text()
        assert re.search(r'^parts = \{ "centroids" = "[0-9a-f]{64}" \}$', (package / f"{party}.toml").read_text(), re.M)


def test_what_is_installed_as_editable_is_not_for_a_policy(package: Path, commands: Path) -> None:
    ran(commands, package, "pip", "install", "-e", ".")
    said = ran(commands, package, "atoll", "parts")
    assert "not for a policy: centroids is installed as editable" in said
    assert "parts = " not in said
