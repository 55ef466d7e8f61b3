"""Records what this release says: its messages byte by byte, its job texts, the fields of its parts.

`python tests/golden/record_release.py` writes tests/golden/release_0_2 again. It is run while a release is made, and
never after: later releases are held to what it wrote.
"""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from atoll.core.question import Layout, Leaf
from atoll.data import Column, TableSchema
from atoll.job.assemble import agreement_of
from atoll.job.catalogue import find, names, parameters
from atoll.job.file import KEYS, dumps, examples, from_table, load, to_table
from atoll.job.migrate import migrate
from atoll.runtimes.network.messages.calls import SERVICE
from atoll.runtimes.network.messages.envelope import (
    AnswerHead,
    Goodbye,
    Hello,
    QuestionHead,
    Receipt,
    Welcome,
    write_envelope,
)
from atoll.runtimes.network.messages.payload import Header
from atoll.runtimes.network.messages.trees import write_tree

HERE = Path(__file__).parent
RELEASE = HERE / "release_0_2"
OURS = ("method", "model", "select", "stage", "combine", "rule", "metric", "stop", "availability", "schedule")

SAMPLE = Layout({"x": Leaf("float32", (3,), finite=False), "y": Leaf("int32", (), finite=False)})
COLUMNS = TableSchema(
    (Column("age", "years"), Column("ward", values=())), Column("ill", values=("no", "yes")), gaps=("age",)
)
ENVELOPES = {
    "hello": Hello("ada", 120, SAMPLE, columns=COLUMNS),
    "hello of an edge": Hello("north", 0, Layout({}), edge=True),
    "welcome": Welcome(
        "run-1", 2, 'name = "x"\n', bytes(range(32)), {"train/contribute": SAMPLE}, {"ada": 2, "ben": 0}, 2, SAMPLE
    ),
    "question": QuestionHead("run-1", 7, "train/contribute", 3, 600.0, 1234, bytes(range(32)), 6),
    "answer": AnswerHead("run-1", 7, 99, bytes(range(32)), 1.5),
    "declined": AnswerHead("run-1", 7, 0, bytes(32), 0.5, "not today", "declined"),
    "receipt": Receipt(False, "too late"),
    "goodbye": Goodbye("not with this policy"),
}
TREE = {"t": 3, "params": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(4)}, "none": {}}


def messages() -> dict[str, str]:
    said = {name: write_envelope(envelope) for name, envelope in ENVELOPES.items()}
    header = Header("answer", "run-1/7", 99, bytes(range(32)), b"envelope")
    said |= {"header": msgspec.msgpack.encode(header), "tree": write_tree(TREE), "service": SERVICE.encode()}
    return {name: data.hex() for name, data in said.items()}


def jobs() -> dict[str, dict[str, str]]:
    """Texts of jobs over the catalogue, as a server of this release writes them."""
    old = {
        path.stem: migrate(tomllib.loads(path.read_text())) for path in sorted((HERE / "release_0_1").glob("*.toml"))
    }
    made = {name: from_table(said) for name, said in old.items() if name != "torch"}
    made |= {f"example {name}": load(name) for name in examples()}
    texts = {name: dumps(to_table(said.job, said.data, said.seed)) for name, said in made.items()}
    return {name: {"text": text, "hash": agreement_of(text).hex()} for name, text in texts.items()}


def parts() -> dict[str, list[str]]:
    """Fields of all parts that a text can name; those that a later release adds say since when."""
    found = {"job": list(KEYS)}
    for kind in OURS:
        for name in names(kind):
            found[f"{kind} {name}"] = fields_of(find(kind, name))
    return found


def fields_of(factory: Any) -> list[str]:
    late = {f.name for f in fields(factory) if "since" in f.metadata} if is_dataclass(factory) else set()
    return [name for name in parameters(factory) if name not in late]


if __name__ == "__main__":
    RELEASE.mkdir(exist_ok=True)
    for name, made in (("messages", messages()), ("jobs", jobs()), ("parts", parts())):
        (RELEASE / f"{name}.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
        sys.stdout.write(f"{RELEASE.name}/{name}.json: {len(made)}\n")
