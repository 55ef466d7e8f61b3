"""`atoll migrate`: job and policy files of release 0.1, rewritten in place with the current names."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from atoll.core.disk import replace_file
from atoll.job.catalogue import BadJob
from atoll.job.migrate import ChangedLine, kind_of, other_defaults, rewrite

BACKUP = ".0.1"  # after the whole name


def migrate_files(files: list[Path], *, check: bool) -> None:
    """Rewrite files, or with `check` only say what would change.

    A file that cannot be rewritten is left alone, and so is every other of the call: all are read before any is
    written.

    Args:
        files: job files and policy files.
        check: write nothing, and end with exit code 1 if any file has words of release 0.1.
    """
    planned = [(path, *_planned(path)) for path in files]
    for path, old, new, changes in planned:
        for sentence in other_defaults(tomllib.loads(old.decode())):
            sys.stdout.write(f"{path}: {sentence}\n")
        if not changes:
            sys.stdout.write(f"{path}: nothing to change\n")
            continue
        for change in changes:
            sys.stdout.write(f"{path}, line {change.line}: {change.words}\n")
        if not check:
            _write(path, old, new)
            sys.stdout.write(f"{path}: rewritten; {_backup(path)} is the file as it was\n")
    if check and any(changes for *_, changes in planned):
        sys.exit(1)


def _planned(path: Path) -> tuple[bytes, bytes, list[ChangedLine]]:
    """Read a file; return its bytes now and then, and what changes."""
    if path.is_dir():
        raise BadJob(f"{path} is a folder: name job and policy files; run folders of release 0.1 are read as they are")
    try:
        old = path.read_bytes()
        text = old.decode("utf-8")
        said = tomllib.loads(text)
    except OSError as error:
        raise BadJob(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadJob(f"{path}: not UTF-8 text, so neither a job file nor a policy file") from None
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"{path}: not TOML, so neither a job file nor a policy file: {error}") from None
    if kind_of(said) is None:
        raise BadJob(f"{path}: neither a job file (it names no method) nor a policy file (it has no key of one)")
    try:
        new, changes = rewrite(text)
    except BadJob as error:
        raise BadJob(f"{path}: left as it is: {error}") from None
    if changes:
        _understood(path, new)
        backup = _backup(path)
        if backup.is_file() and backup.read_bytes() != old:
            raise BadJob(f"{backup} is there already and is another file: move it away, then migrate {path} again")
    return old, new.encode("utf-8"), changes


def _understood(path: Path, text: str) -> None:
    """Refuse to write what this release would not read."""
    from atoll.job.file import parse
    from atoll.runtimes.network.party.policy import BadPolicy, Policy

    try:
        if kind_of(tomllib.loads(text)) == "job":
            parse(text, str(path))
        else:
            Policy.parse(text, str(path))
    except (BadJob, BadPolicy, tomllib.TOMLDecodeError) as error:
        raise BadJob(f"{error}; the file is left as it is, because it would not be read when rewritten") from None


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP)


def _write(path: Path, old: bytes, new: bytes) -> None:
    from atoll.core.errors import Unwritable

    real = path.resolve()  # a link stays a link
    try:
        mode = real.stat().st_mode & 0o7777  # who could read it still can
        replace_file(_backup(path), old, mode=mode)
        replace_file(real, new, mode=mode)
    except OSError as error:
        raise Unwritable(
            f"cannot write {path} and its copy {_backup(path)}: {error.strerror}; {path} is as it was"
        ) from None
