"""Where data files are: ATOLL_DATA, then the user's cache, then their public home. What they mean is not known here."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.core.disk import replace_file
from atoll.data.errors import BadData, DataMissing

MOST = 64 << 20  # bytes: twice the largest file known here, so that a wrong address cannot fill a disk
Download = Callable[[str], bytes]


@dataclass(frozen=True)
class File:
    """One file of a data set: its place under a data folder, and where its bytes can be had.

    `sha256` is that of the bytes at `url`; where they are an archive, the file is its `member`. Without a url, `home`
    is the page where a person finds the file.
    """

    path: str
    url: str = ""
    sha256: str = ""
    home: str = ""
    member: str = ""


def cache() -> Path:
    """Return the folder that downloads go to."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll" / "data"


def find(file: File, opener: Download | None = None) -> Path:
    """Return the path of a file, downloading it where it is not on this machine; `opener` is how (default: https)."""
    named = os.environ.get("ATOLL_DATA")
    plain = file.path.removesuffix(".gz")
    for folder in ([Path(named)] if named else []) + [cache()]:
        for path in (folder / file.path, folder / plain, folder / f"{plain}.gz"):
            if path.is_file():
                return path
    place = f"put it at {cache() / file.path} or under the folder that ATOLL_DATA names"
    if not file.url:
        raise DataMissing(f"{file.path} is not on this machine and cannot be downloaded: {place} (home: {file.home})")
    if os.environ.get("ATOLL_OFFLINE"):
        raise DataMissing(f"{file.path} is not on this machine and ATOLL_OFFLINE forbids a download: {place}")
    try:
        content = (opener or download)(file.url)
    except OSError as problem:  # urllib's errors are of this kind too
        raise DataMissing(f"{file.path} could not be had from {file.url} ({problem}): {place}") from problem
    return _keep(file, content)


def read(file: File) -> bytes:
    """Return a file's content, unpacked if it is gzipped."""
    path = find(file)
    content = path.read_bytes()
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as problem:
        raise BadData(f"{path} is a damaged gzip file ({problem}): delete it and put a whole one there") from problem


def download(url: str) -> bytes:
    """Fetch a small file over https."""
    if not url.startswith("https://"):
        raise BadData(f"{url} is not https: give an address that is")
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    request = Request(url, headers={"User-Agent": "atoll"})  # noqa: S310 (the line above refuses other schemes)
    try:
        with urlopen(request, timeout=30) as answer:  # noqa: S310
            content: bytes = answer.read(MOST + 1)
    except HTTPException as problem:
        raise OSError(f"broken answer: {problem}") from problem
    if len(content) > MOST:
        raise BadData(f"{url} is larger than {MOST >> 20} MB: this is not the file that was expected")
    return content


def _keep(file: File, content: bytes) -> Path:
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise BadData(
            f"{file.url} has sha256 {found[:16]}… where {file.sha256[:16]}… was expected:"
            f" get the file elsewhere and put it at {cache() / file.path}"
        )
    if file.member:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            content = archive.extractfile(file.member).read()  # type: ignore[union-attr] # its bytes are known
    path = cache() / file.path
    if not file.url.endswith(".gz"):
        path = path.with_name(path.name.removesuffix(".gz"))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content, sync=False)  # whole or not at all: another process may be reading
    return path
