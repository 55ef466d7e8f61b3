"""Write what `./start` and `./check` install, by version and hash: `python requirements/lock.py [start | check]`.

It asks pip what it would install for this interpreter on this machine, and writes start.txt and check.txt beside this
file; `python requirements/sbom.py` then writes the bill of materials. A lock fits one kind of machine, which its second
line names. A version may be built twice, for a registry and for a local mirror of it: both files are listed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
# With hatchling and editables the package itself is built from the lock, too.
WANTED = {"start": [".", "hatchling", "editables"], "check": [".[test]", "torch==2.13.0", "hatchling", "editables"]}
# By version only: the build for the CPU comes from a local file on some machines, which no registry has.
BY_VERSION = ("torch",)

Pins = dict[tuple[str, str], set[str]]  # hashes by name and version


def kind() -> str:
    """Name the kind of machine that a lock fits."""
    version = ".".join(platform.python_version_tuple()[:2])
    return " ".join(
        [sys.implementation.name, version, sys.platform, platform.machine(), platform.libc_ver()[0]]
    ).strip()


def would_install(wanted: Sequence[str], *options: str, env: Mapping[str, str] | None = None) -> Pins:
    """Ask pip what it would install."""
    report = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run(  # noqa: S603 - pip, with words of this file
        [*report, *options, *wanted], cwd=HERE.parent, env=env, stdout=subprocess.PIPE, check=True, text=True
    )
    found: Pins = {}
    for one in json.loads(done.stdout)["install"]:
        archive = one["download_info"].get("archive_info")
        if archive:  # the package itself is a folder
            name = one["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
            found[name, one["metadata"]["version"].partition("+")[0]] = {archive["hashes"]["sha256"]}
    return found


def of_the_registry(pins: Pins) -> Pins:
    """Ask pip for the same versions without the mirrors that this machine may be set up with."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name == "PIP_CERT"}
    exact = [f"{name}=={version}" for name, version in pins if name not in BY_VERSION]
    return would_install(exact, "--no-deps", env={**env, "PIP_CONFIG_FILE": os.devnull})


def write(command: str) -> None:
    pins = would_install(WANTED[command])
    for pin, hashes in of_the_registry(pins).items():
        pins.setdefault(pin, set()).update(hashes)
    lines = [f"# What ./{command} installs. Written by requirements/lock.py.", f"# for: {kind()}"]
    for (name, version), hashes in sorted(pins.items()):
        by_hash = "".join(f" --hash=sha256:{one}" for one in sorted(hashes))
        lines.append(f"# by version: {name}=={version}" if name in BY_VERSION else f"{name}=={version}{by_hash}")
    with tempfile.NamedTemporaryFile("w", dir=HERE, delete=False, encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    Path(file.name).chmod(0o644)
    Path(file.name).replace(HERE / f"{command}.txt")


if __name__ == "__main__":
    for command in sys.argv[1:] or WANTED:
        write(command)
