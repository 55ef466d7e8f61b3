"""Shakespeare's plays by speaker, as windows of characters to predict the next character from."""

from __future__ import annotations

import json

import numpy as np

from atoll.core.tree import Array
from atoll.data.errors import whole
from atoll.data.files import File, read
from atoll.data.table import Table

PAD, END = 256, 257  # beside the 256 byte values; PAD also starts a text
SHAKESPEARE = File(
    "shakespeare/mit_shakespeare_by_speaker.jsonl.gz",
    home="shakespeare.mit.edu; one JSON object a line: play, speaker, ref, line",
)


def shakespeare(*, length: int = 80) -> Table:
    """All plays, next-character prediction: 1,340 speakers, keyed by speaker.

    A speaker's text is its UTF-8 bytes between PAD and END, cut into windows that do not overlap; y is x one character
    on. The last window is filled up with PAD: a label of 256 is no character and counts in no loss and no metric.
    Each speaker's first 80 % of windows train, the rest test, in the order of the play.
    """
    whole("length", length, 2)
    texts: dict[str, list[str]] = {}
    for record in map(json.loads, read(SHAKESPEARE).decode().splitlines()):
        texts.setdefault(f"{record['play']}/{record['speaker']}", []).append(record["line"])
    speakers, pieces = list(texts), [_windows("\n".join(lines).encode(), length) for lines in texts.values()]
    counts = np.array([len(x) for x, _ in pieces])
    first = np.maximum(1, counts * 4 // 5)
    who = np.repeat(np.arange(len(speakers)), counts)
    late = np.arange(len(who)) - (np.cumsum(counts) - counts)[who] >= first[who]
    x, y = np.concatenate([x for x, _ in pieces]), np.concatenate([y for _, y in pieces])
    names = np.array(speakers)[who]
    return Table(
        x[~late],
        y[~late],
        x[late],
        y[late],
        classes=END + 1,
        keys={"speaker": names[~late]},
        test_keys={"speaker": names[late]},
    )


def _windows(text: bytes, length: int) -> tuple[Array, Array]:
    size = len(text) + 1
    padded = np.full(-(-size // length) * length + 1, PAD, np.uint16)
    padded[1:size] = np.frombuffer(text, np.uint8)
    padded[size] = END
    x, y = padded[:-1].copy(), padded[1:]
    x[size:] = PAD  # what follows END is no input either
    return x.reshape(-1, length), y.reshape(-1, length)
