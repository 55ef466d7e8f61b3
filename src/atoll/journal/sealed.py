"""What is written so that damage is noticed: JSON objects with a checksum, arrays with a digest of all they hold."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from atoll.core.disk import replace_file
from atoll.core.errors import AtollError
from atoll.core.tree import Array, Tree, leaves, nest

_SEALED = re.compile(rb'(.+), "check": "([0-9a-f]{8})"\}', re.DOTALL)
_DIGEST = "sha256"  # its name in the header of a file of arrays


class Damaged(AtollError, ValueError):
    """A file of a run is damaged or lost; the sentence names it, and what to do.

    Example:
        >>> from atoll.journal import Damaged
        >>> Damaged.code
        'damaged'
    """

    code = "damaged"


def seal(said: Mapping[str, object]) -> str:
    """Write an object as one line of JSON whose last member is a checksum of the rest."""
    text = json.dumps(said, default=_plain)
    return f'{text[:-1]}, "check": "{zlib.crc32(text.encode()):08x}"}}'


def unseal(line: bytes) -> dict[str, object] | None:
    """Read an object that was sealed, without its checksum; None if anything of it was changed."""
    found = _SEALED.fullmatch(line)
    if found is None or zlib.crc32(text := found[1] + b"}") != int(found[2], 16):
        return None
    said: dict[str, object] = json.loads(text)
    return said


def save(path: Path, tree: Tree) -> None:
    """Write a tree of arrays so that the file is the old or the new one, whatever happens, and damage is noticed."""
    from safetensors.numpy import save as serialise

    flat = {name: np.asarray(leaf, order="C") for name, leaf in leaves(tree)}
    replace_file(path, serialise(flat, {_DIGEST: _digest(flat)}), mode=0o600)


def load(path: Path, *, sealed: bool = True) -> Tree:
    """Read a tree of arrays; `sealed`: it must have the digest that it was written with."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as parse

    try:
        data = path.read_bytes()
        flat = parse(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        whole = not sealed or header.get("__metadata__", {}).get(_DIGEST) == _digest(flat)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    except (SafetensorError, ValueError, KeyError, TypeError, MemoryError):
        whole, flat = False, {}
    if not whole:
        raise Damaged(f"{path} is damaged: it is not what was written")
    return nest(flat)


def _digest(flat: Mapping[str, Array]) -> str:
    """Hash names, types, shapes and numbers."""
    found = sha256()
    for name, leaf in sorted(flat.items()):
        found.update(json.dumps([name, leaf.dtype.str, leaf.shape]).encode())
        found.update(leaf.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
