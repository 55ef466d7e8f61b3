"""What a party works out from a job text with its own data: what the job would do to it, and the answers themselves.

All of this runs in a child process. A party that waits needs none of the libraries that train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.catalogue import name_of
from atoll.core.method import Contribution, Method
from atoll.core.party import Group
from atoll.core.tree import Array, Schema, Tree, leaves
from atoll.core.wire import Mismatch
from atoll.data.federated import Federated, Silos
from atoll.job import Assembled, assemble
from atoll.jobfile import parse
from atoll.report.explain import explain
from atoll.runtimes.network.policy import Manifest
from atoll.runtimes.network.trees import Layout, Leaf, message_layout
from atoll.runtimes.workers import Worker
from atoll.seat import Assessment, Hidden, Holding, Seat
from atoll.serve import as_served, remote, sample_layout, schema_of

OFTEN = 2  # answers that a party gives at most, over the job's rounds: a server that fails asks some rounds again


def part_of(recipe: Mapping[str, Any], seed: int = 0) -> Federated:
    """Make a party's own data: all of what the recipe gives, or the samples of its `party`-th client."""
    from atoll.data import build

    words = dict(recipe)
    mine = words.pop("party", None)
    whole = build(words, seed)

    def room(silos: Silos | None) -> Silos | None:
        if silos is None:
            return None
        x, y = silos[int(mine)] if mine is not None else (silos.x, silos.y)
        return Silos(np.ascontiguousarray(x), np.ascontiguousarray(y), np.array([0, len(x)]))

    train = room(whole.train)
    assert train is not None
    return replace(whole, train=train, own=room(whole.own), test=None, parties=())


def blank(sample: Layout, classes: int) -> Federated:
    """Data as an edge has it: nothing, of a certain shape."""
    x, y = (np.zeros((0, *(sample.leaves[name].shape or ())), sample.leaves[name].dtype) for name in ("x", "y"))
    none = Silos(x, y, np.zeros(2, np.int64))
    return Federated(none, own=none, kind="classes" if classes else "real", classes=classes)


def data_of(seat: Seat) -> Federated:
    """Make this party's data, with the labels of everybody's."""
    if seat.sample is not None:
        return blank(seat.sample, seat.classes)
    mine = part_of(seat.recipe)
    highest = int(mine.train.y.max(initial=0)) if mine.kind == "classes" else -1
    if highest >= seat.classes > 0:
        raise Mismatch(f"this party's labels go up to {highest}, and the job has {seat.classes} classes, from 0")
    return replace(mine, classes=seat.classes)


def assembled(seat: Seat, data: Federated) -> tuple[Assembled, Federated, int]:
    """Everybody else is taken to be like this party: what a job spends and sends does not depend on their sizes."""
    said = parse(seat.job, "the server's job")
    sizes = [max(int(data.train.sizes[0]), 1)] * max(seat.parties, seat.number + 1)
    everybody = remote(data, sizes)
    return assemble(as_served(said.job), everybody, said.seed), everybody, said.seed


def worker_of(seat: Seat) -> Worker:
    """Make the worker that trains."""
    data = data_of(seat)
    made, _, seed = assembled(seat, data)
    contribute: Any = made.handlers["contribute"]
    method = contribute.method if seat.most_length is None else Bounded(contribute.method, seat.most_length)
    handlers = {
        **made.handlers,
        "contribute": replace(contribute, method=method, watched=False, seeded=seat.seeded),
    }
    rooms = {"train": data.train} | ({"own": data.own} if data.own is not None else {})
    return Worker(handlers, rooms, seed, seat.number)


@dataclass(frozen=True)
class Bounded:
    """A method whose contributions are shortened to a length of the party's own choice before anything else."""

    method: Method
    most: float

    @property
    def schema(self) -> Schema:
        return self.method.schema

    @property
    def width(self) -> int:
        return self.method.width

    def task(self, share: Tree, group: Group) -> Contribution:
        vector, weight = self.method.task(share, group)
        squares = sum(
            np.square(np.asarray(leaf, np.float64)).reshape(len(group), -1).sum(1) for _, leaf in leaves(vector)
        )
        return Contribution(_scaled(vector, np.minimum(1.0, self.most / np.sqrt(np.maximum(squares, 1e-300)))), weight)


def _scaled(tree: Tree, by: Array) -> Tree:
    def scaled(leaf: Any) -> Any:
        if isinstance(leaf, Mapping):
            return _scaled(leaf, by)
        rows = np.asarray(leaf)
        return rows * by.reshape(-1, *[1] * (rows.ndim - 1)).astype(rows.dtype)

    return {name: scaled(leaf) for name, leaf in tree.items()}


def holding(recipe: Mapping[str, Any]) -> Holding:
    data = part_of(recipe)
    return Holding(int(data.train.sizes[0]), sample_layout(data))


def assess(seat: Seat, server: str, address: str) -> Assessment:
    data = data_of(seat)
    made, everybody, seed = assembled(seat, data)
    job, plan, wire = made.job, made.plan, made.wire
    share = plan.method.share(plan.method.init(plan.seed))
    told = {name: plan.codec.start[name] for name in plan.codec.tells}
    question = {"share": share, "t": 0} | ({"told": told} if told else {})
    down = sum(np.asarray(leaf).nbytes for _, leaf in leaves(share))
    schema = schema_of(plan.method)
    account = (made.ledger.server or made.ledger.of()) if made.ledger else None
    answers = OFTEN * job.rounds
    spent = tuple(account.epsilon(n) for n in range(1, answers + 1)) if account else ()
    metrics = ("loss", "accuracy" if data.kind == "classes" else "error") if "own" in plan.rooms else ()
    bound = min((x for x in (wire.l2, seat.most_length) if x is not None), default=None)
    manifest = Manifest(
        server=server, method=name_of(job.method), model=schema.hex(), parameters=plan.method.schema.size,
        rounds=job.rounds, cohort=wire.cohort, combine=name_of(job.channel.combine), real=True,
        noise=wire.noise, epsilon=spent[job.rounds - 1] if spent else None, length=bound, up=plan.up, down=down,
        metrics=metrics, address=address,
    )  # fmt: skip
    combine: Any = job.channel.combine
    questions = {"contribute": Layout.of(question)}
    questions |= {"judge.own": Layout.of({"share": share, "t": 0})} if metrics else {}
    hidden = None
    if hasattr(combine, "talk"):
        width, value = 8 * np.dtype(wire.dtype).itemsize, int(wire.peak).bit_length() + 1
        hidden = Hidden(combine, wire.size, width, value, schema, wire.floor)
        leaves_of = {name: {"t": Leaf("int")} for name in combine.needs(wire, len(everybody))}
        leaves_of[next(iter(leaves_of))] = questions.pop("contribute").leaves
        for name, (_, most) in combine.needs(wire, len(everybody)).items():
            questions[name] = Layout({**leaves_of[name], **message_layout(most).leaves})
    words = f"{explain(job, everybody, seed, served=True)}\n\nin a policy\n  this model is {manifest.model}"
    return Assessment(manifest, words, questions, spent, hidden, answers)
