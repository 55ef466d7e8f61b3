"""A server that serves honestly and writes down all that it sees: each model, and each party's vector in a plain sum.

`curious.main()` stands in for `atoll.cli.main()` in the process of a server. Records are rows of 64-bit floats: in
`models.bin` the number of asks done and the model, in `vectors.bin` the ask, the number of the party and its vector.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from atoll.cli import main as cli
from atoll.core.effects import Ask, Replies
from atoll.core.tree import Tree
from atoll.journal.write import Journal
from atoll.runtimes.local.worker import sum_type
from atoll.runtimes.network.server.hub import Hub


def main() -> None:
    checkpoint, ask = Journal.checkpoint, Hub.ask

    def write(name: str, *row: float) -> None:
        with Path(f"{name}.bin").open("ab") as file:
            file.write(np.array(row, np.float64).tobytes())

    def looking(journal: Journal, memory: Tree) -> None:
        write("models", memory["t"], *np.ravel(memory["state"]["params"]))
        checkpoint(journal, memory)

    def listening(hub: Hub, asked: Ask) -> Replies:
        if "vector" not in asked.fold:
            return ask(hub, asked)
        replies = ask(hub, asked._replace(fold=()))
        for party, vector in zip(replies, replies.each.get("vector", ()), strict=True):
            write("vectors", asked.body["t"], party, *vector)
        sums = {name: np.add.reduce(rows, axis=0, dtype=sum_type(rows, wide=asked.wide))
                for name, rows in replies.each.items() if name in asked.fold}  # fmt: skip
        each = {name: rows for name, rows in replies.each.items() if name not in asked.fold}
        return replace(replies, each=each, sums=sums)

    Journal.checkpoint, Hub.ask = looking, listening  # type: ignore[method-assign]
    cli()
