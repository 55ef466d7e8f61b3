"""A server's next key, announced by the one before: a party that trusts the old key trusts the new one, too.

An announcement is the new public key and a signature of the old one over it. A party keeps what it was told in a file;
what is in there counts only as far as signatures lead from the key that the party was given itself.
"""

from __future__ import annotations

import base64
import binascii
import os
from contextlib import suppress
from pathlib import Path

from atoll.crypto.keys import KEY, Identity, Refused, refuse_if, verify

FILE = "server.keys"
_PURPOSE = b"atoll: the next key of this server\0"


def announcement(old: Identity, new: bytes) -> bytes:
    """Announce a new key by the old one."""
    return new + old.sign(_PURPOSE + new)


def successor(trusted: bytes, said: bytes) -> bytes:
    """Return the key that is announced; one that the trusted key has not signed is refused."""
    new, signature = said[:KEY], said[KEY:]
    refuse_if(
        not verify(trusted, _PURPOSE + new, signature),
        "the server announces a key that its own key has not signed: it is broken or lies; ask its owner",
    )
    return new


def successors(trusted: bytes, folder: Path) -> tuple[bytes, ...]:
    """Return the keys that a party was told of, each announced by the one before it, from the trusted one on."""
    try:
        lines = (folder / FILE).read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    known = [trusted]
    for line in lines:
        with suppress(binascii.Error, Refused):  # whoever writes to the file itself has signed nothing
            key = successor(known[-1], base64.b64decode(line, validate=True))
            known += [] if key in known else [key]
    return tuple(known[1:])


def remember(trusted: bytes, folder: Path, said: bytes) -> bytes | None:
    """Keep an announcement of the newest key; returns the new key, None if it was known. A false one is refused."""
    known = (trusted, *successors(trusted, folder))
    if said[:KEY] in known:
        return None
    new = successor(known[-1], said)
    handle = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(handle, "wb") as file:
        file.write(base64.b64encode(said) + b"\n")
        os.fsync(file.fileno())
    return new
