"""Who may take part: key files that only their owner reads, and rosters of names and public keys in plain text."""

from __future__ import annotations

import base64
import binascii
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from atoll.core.errors import AtollError
from atoll.crypto.keys import KEY, Identity, Refused, refuse_if

NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
MOST = 1_200  # parties; a handshake names each of them, and no TLS library reads more than 100 kB of names


class Unreadable(AtollError, OSError):
    """A roster that is not there or has a line that cannot be: nobody is let in until it is mended."""

    code = "roster_unreadable"


class NoKey(AtollError, FileNotFoundError):
    """There is no key file at this path; the sentence says how to make one."""

    code = "no_key"


@dataclass(frozen=True)
class NamedIdentity:
    """A name and the identity behind it: what a key file holds."""

    name: str
    identity: Identity


@dataclass(frozen=True)
class Peer:
    """Somebody else's name and public key: what a roster line holds."""

    name: str
    key: bytes


def check_name(name: str) -> str:
    refuse_if(
        not NAME.fullmatch(name),
        f"name={name!r}: a name has at most 63 small letters, digits, dots and dashes, and begins and ends with a "
        "letter or digit",
    )
    return name


def new_key(folder: str | Path, name: str) -> NamedIdentity:
    """Write a new Ed25519 key to folder/name.key, which only its owner can read; an existing key is never replaced."""
    member = NamedIdentity(check_name(name), Identity.new())
    path = Path(folder) / f"{name}.key"
    Path(folder).mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.from_private_bytes(member.identity.secret)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(f"{path} exists: a key is not replaced, move it away first") from None
    with open(handle, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        os.fsync(file.fileno())
    return member


def load_key(path: str | Path) -> NamedIdentity:
    """The member whose key this file holds; its name is the file's. A file that others can read is refused."""
    path = Path(path)
    if not path.is_file():
        raise NoKey(f"{path}: there is no such key; atoll key new makes one")
    refuse_if(path.stat().st_mode & 0o077 != 0, f"{path} can be read by others: chmod 600 {path}, or make a new key")
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        raise Refused(f"{path} is not a private key in PEM form") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise Refused(f"{path} is not an Ed25519 key; atoll key new makes one")
    return NamedIdentity(check_name(path.stem), Identity.of(key.private_bytes_raw()))


def key_text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def line_of(member: NamedIdentity, comment: str = "") -> str:
    """The line of a roster that lets this member in; it holds nothing secret."""
    return f"{member.name} {key_text(member.identity.public)} {comment}".strip()


def peer_of(line: str) -> Peer:
    """Read one line: a name, a key, and any comment."""
    fields = line.split(maxsplit=2)
    refuse_if(len(fields) < 2, f"{line.strip()!r}: a line is a name and a key")
    key = _decoded(fields[1])
    refuse_if(len(key) != KEY, f"the key of {fields[0]!r} is not {KEY} bytes in base64")
    return Peer(check_name(fields[0]), key)


HINT = 4  # bytes of a key: enough to tell the two keys of a name apart, both of which the reader trusts


def hints_of(texts: Mapping[str, str], names: Iterable[str]) -> bytes:
    """Say of each name, in their order, how the key begins that it uses; four zeros for one that has none."""
    return b"".join(_decoded(texts.get(name, ""))[:HINT].ljust(HINT, b"\0") for name in sorted(names))


def hinted(names: Iterable[str], hints: bytes) -> dict[str, bytes]:
    """Read what `hints_of` says."""
    return {name: hints[HINT * at : HINT * at + HINT] for at, name in enumerate(sorted(names))}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


@dataclass(frozen=True)
class Roster:
    """Who may come in: names and their keys, in the order of the file.

    A name may stand in two lines, with two keys: both are valid while its owner replaces one by the other.
    """

    keys: Mapping[str, bytes]  # of the first line of each name
    second: Mapping[str, bytes] = field(default_factory=dict)
    names: Mapping[bytes, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        every = [*self.keys.items(), *self.second.items()]
        object.__setattr__(self, "names", MappingProxyType({key: name for name, key in every}))

    def using(self, hints: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return one key of each name: the one that begins as the hint says, else that of its first line."""
        return {
            name: second
            if (second := self.second.get(name)) and hints.get(name) and second.startswith(hints[name])
            else key
            for name, key in self.keys.items()
        }

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        keys: dict[str, bytes] = {}
        second: dict[str, bytes] = {}
        taken: set[bytes] = set()
        for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                peer = peer_of(line)
                refuse_if(
                    peer.name in second, f"the name {peer.name!r} is there three times: two keys of a name are valid"
                )
                refuse_if(peer.key in taken, f"the key of {peer.name!r} is there twice")
            except Refused as reason:
                raise Refused(f"{path}:{number}: {reason}") from None
            (second if peer.name in keys else keys)[peer.name] = peer.key
            taken.add(peer.key)
        refuse_if(
            len(taken) > MOST,
            f"{path}: {len(taken):,} keys, and one server takes {MOST:,}: let groups of parties join through edges "
            "(atoll edge --help)",
        )
        return cls(MappingProxyType(keys), MappingProxyType(second))


class RosterFile:
    """A roster that is read again whenever its file has changed. It knows by which of its keys a name came last."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._roster = Roster({})
        self._used: dict[str, bytes] = {}
        self.now()

    def name_of(self, key: bytes) -> str | None:
        """Return the name of who has come with this key, if the file has it now."""
        name = self.now().names.get(key)
        if name is not None:
            self._used[name] = key
        return name

    def texts(self) -> dict[str, str]:
        """Return the key that each name uses, as lines write it."""
        return {name: key_text(key) for name, key in self.now().using(self._used).items()}

    def now(self) -> Roster:
        """The roster as the file says now, or Unreadable."""
        with self._lock:
            try:
                about = self._path.stat()
                seen = (about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino)
                if seen != self._seen:
                    self._roster = Roster.load(self._path)
                    self._seen = seen
            except (OSError, ValueError) as error:
                raise Unreadable(f"the roster cannot be read: {error}") from None
            return self._roster
