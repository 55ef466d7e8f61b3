"""Parts of other packages: found by entry point, known by a digest over their files, admitted by a party's policy.

A package declares its parts in its pyproject.toml, as kind.name:

    [project.entry-points."atoll.parts"]
    "stage.halve" = "mypackage.parts:Halve"

A job file then says `use = "halve"` where a stage belongs. To find a part imports nothing; to use it does.
"""

from __future__ import annotations

import csv
import hashlib
import json
import marshal
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.machinery import all_suffixes
from importlib.util import cache_from_source, find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from atoll.core.errors import nearest
from atoll.job.catalogue import PARTS, BadJob

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "atoll.parts"
KINDS = tuple(PARTS)
# What an installer notes about itself differs between machines, and is no part of what a package is.
_NOTES = {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}


_HEADER = 16  # bytes before the code in a compiled module (PEP 552)


class Entry(NamedTuple):
    """A part of another package. `path` is where it is, as module:Name."""

    kind: str
    name: str
    path: str
    package: str
    version: str


class Package(NamedTuple):
    """An installed distribution, with the digest of its files."""

    name: str
    version: str
    digest: str


def installed() -> Mapping[tuple[str, str], Entry]:
    """Return the parts of all installed packages by (kind, name); refuse names that two of them claim."""
    return _installed(tuple(sys.path))


@lru_cache(maxsize=1)
def _installed(_: tuple[str, ...]) -> Mapping[tuple[str, str], Entry]:
    from importlib.metadata import entry_points

    found: dict[tuple[str, str], Entry] = {}
    for point in entry_points(group=GROUP):
        entry = _entry(point)
        key = (entry.kind, entry.name)
        mine = f"{entry.package} {entry.version}"
        if entry.name in PARTS.get(entry.kind, {}):
            raise BadJob(
                f"{mine} calls a {entry.kind} '{entry.name}', which is the name of a {entry.kind} of Atoll: "
                "rename its entry point, or uninstall it"
            )
        if key in found:
            other = f"{found[key].package} {found[key].version}"
            raise BadJob(f"{other} and {mine} both have a {entry.kind} '{entry.name}': uninstall one of them")
        found[key] = entry
    return found


def _entry(point: EntryPoint) -> Entry:
    assert point.dist is not None  # of an entry point that was found in a distribution
    package, version = point.dist.name, point.dist.version
    kind, _, name = point.name.partition(".")
    if kind not in KINDS or not name.isidentifier():
        raise BadJob(
            f'{package} {version}: the entry point "{point.name}" of {GROUP} is not kind.name, as in "stage.halve"; '
            f"kinds are {', '.join(KINDS)}"
        )
    if not re.fullmatch(r"[\w.]+:[\w.]+", point.value):
        raise BadJob(
            f'{package} {version}: the entry point "{point.name}" leads to "{point.value}", not to module:Name'
        )
    return Entry(kind, name, point.value, package, version)


def load(path: str, where: str) -> object:
    """Import what module:Name names."""
    module, _, name = path.partition(":")
    try:
        found = import_module(module)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise BadJob(f'{where}: cannot import {module} ({said}); python -c "import {module}" shows more') from error
    for step in name.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            known = [n for n in dir(found) if n[0] != "_"]
            raise BadJob(f"{where}: {module} has no '{name}'; {nearest(step, known)}") from None
    return found


def load_own(path: str, where: str) -> object:
    """Import what module:Name names, also from the current folder: the `atoll` command does not look there."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file of this folder stands in for an installed package
    return load(path, where)


# --- digests ----------------------------------------------------------------------------------------------------------


def digest(package: str) -> str:
    """Return the SHA-256 of an installed package, in hex: over the names and contents of its files as they are now.

    The files are those that its RECORD lists, without what Python compiled, installed scripts and the installer's
    notes, so the digest is the same on every machine with the same wheel. A package has no digest if Python could run
    anything else in its name: one installed from a folder that may change (editable), one that brings its modules
    already compiled, one with modules in its folders that are not listed.
    """
    dist = _distribution(package)
    total, files = hashlib.sha256(), _files(dist)
    for name in files:
        try:
            with Path(str(dist.locate_file(name))).open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise BadJob(f"{package}: cannot read {name} ({error.strerror}): install it again") from None
        written = name.encode()
        total.update(len(written).to_bytes(8, "big") + written + content)
    _refuse_unlisted(dist, files)
    return total.hexdigest()


def packages() -> list[str]:
    """Return the names of the installed packages that have parts, in order."""
    return sorted({entry.package for entry in installed().values()})


def package_of(name: str) -> Package:
    """Return an installed package with its version and digest."""
    dist = _distribution(name)
    return Package(dist.name, dist.version, digest(name))


def _distribution(name: str) -> Distribution:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(name)
    except PackageNotFoundError:
        raise BadJob(f"{name} is not installed: pip install it") from None


def _files(dist: Distribution) -> list[str]:
    """Return the names of the files that make a package, sorted."""
    try:
        listed, origin = dist.read_text("RECORD"), json.loads(dist.read_text("direct_url.json") or "{}")
        rows = {row[0]: any(row[1:]) for row in csv.reader((listed or "").splitlines()) if row}
        editable = origin.get("dir_info", {}).get("editable")
    except (ValueError, AttributeError, csv.Error):
        raise BadJob(f"{dist.name}: what its installer noted cannot be read: install it again") from None
    if listed is None:
        raise BadJob(f"{dist.name} has no list of its files (RECORD), so it has no digest: install it with pip")
    if editable or any(name.endswith(".pth") or name.startswith("__editable__") for name in rows):
        raise BadJob(f"{dist.name} is installed as editable, so its files may change: install it with pip install .")
    names = sorted(rows)
    brought = [name for name in names if rows[name] and "__pycache__" in PurePosixPath(name).parts]
    if brought:  # what the installer itself compiled is listed without a hash
        raise BadJob(f"{dist.name} brings {brought[0]}, which would run in place of its source: build it without")
    return [name for name in names if not _is_noted(PurePosixPath(name))]


def _refuse_unlisted(dist: Distribution, files: list[str]) -> None:
    """Refuse modules in a package's folders that are not its own: Python may prefer them to those that are."""
    modules = tuple(all_suffixes())
    folders = {PurePosixPath(name).parent for name in files if name.endswith(modules)} - {PurePosixPath()}
    own = {Path(str(dist.locate_file(name))).resolve() for name in files}
    for folder in sorted(folders):
        for path in sorted(Path(str(dist.locate_file(folder))).rglob("*")):
            if path.name.endswith(modules) and "__pycache__" not in path.parts and path.resolve() not in own:
                raise BadJob(f"{dist.name}: {path} is not in the list of its files (RECORD): install it again")


def _refuse_other_caches(dist: Distribution, files: list[str]) -> None:
    """Refuse compiled modules that say something else than their sources: Python would run them in their place."""
    for name in files:
        source = Path(str(dist.locate_file(name)))
        cache = Path(cache_from_source(source)) if name.endswith(".py") else None
        if cache is None or not cache.is_file():
            continue
        try:
            run = marshal.loads(cache.read_bytes()[_HEADER:])  # noqa: S302 - an import would do the same, and run it
            same = run == compile(source.read_bytes(), source, "exec", dont_inherit=True)
        except (EOFError, OSError, SyntaxError, TypeError, ValueError):
            same = False
        if not same:
            raise BadJob(f"{dist.name}: {cache} is not what {name} compiles to, and would run in its place: delete it")


def _is_noted(path: PurePosixPath) -> bool:
    script = ".." in path.parts and path.parent.name in ("bin", "Scripts")  # holds the path of this machine's Python
    return script or "__pycache__" in path.parts or (path.parent.suffix == ".dist-info" and path.name in _NOTES)


# --- what a party admits ----------------------------------------------------------------------------------------------


def admit(entry: Entry, where: str, allowed: Mapping[str, str]) -> None:
    """Refuse a part that a peer's text names, unless its package is allowed exactly as it is installed here.

    Args:
        entry: The part. Nothing of its package has been imported on behalf of the text.
        where: Where the text names it.
        allowed: Names of packages and their digests, as a party's policy lists them.
    """
    named = {normal(name): value for name, value in allowed.items()}.get(normal(entry.package))
    mine = f"{where}: the {entry.kind} '{entry.name}' is from {entry.package} {entry.version}"
    if named is None:
        raise BadJob(f"{mine}, which this party's policy does not allow: add it to parts (`atoll parts` prints it)")
    found = digest(entry.package)
    if found != named:
        raise BadJob(
            f"{mine}, which is installed here with the digest {found}, and the policy allows {named}: install the "
            "version that was allowed, or allow this one in parts"
        )
    dist = _distribution(entry.package)
    _refuse_other_caches(dist, _files(dist))
    if not _is_own(entry):
        module = entry.path.partition(":")[0]
        raise BadJob(f"{mine}, but {module} is not one of its own files, so its digest says nothing: install it again")


def _is_own(entry: Entry) -> bool:
    """Whether an import would read files of the package itself, and not of a folder that hides them."""
    dist, module = _distribution(entry.package), entry.path.partition(":")[0]
    files, stem = _files(dist), module.replace(".", "/")
    try:
        spec = find_spec(module.partition(".")[0])  # the first name alone: to find the others would import it
    except ValueError:  # it is imported already, from no file
        return False
    if spec is None or spec.origin is None:
        return False
    listed = any(name == f"{stem}/__init__.py" or name.startswith(f"{stem}.") for name in files)
    places = {Path(str(dist.locate_file(name))).resolve() for name in files}
    return listed and Path(spec.origin).resolve() in places


def normal(name: str) -> str:
    """Return a package's name as all its spellings are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
