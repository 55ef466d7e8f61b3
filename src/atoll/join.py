"""Take part in a served job: read it, hold it against the party's own policy, train in a child process, answer."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.tree import Array
from atoll.data.federated import Federated, Silos
from atoll.job import Assembled, assemble
from atoll.jobfile import parse
from atoll.report.explain import explain
from atoll.serve import check_served, remote, sample_layout

HELLO_FIRST = "say hello first"  # what a server says that was started again


def part_of(recipe: Mapping[str, Any], seed: int = 0) -> Federated:
    """Make a party's own data: all of what the recipe gives, or the samples of its `party`-th client."""
    from atoll.data import build

    words = dict(recipe)
    mine = words.pop("party", None)
    whole = build(words, seed)
    x, y = whole.train[int(mine)] if mine is not None else (whole.train.x, whole.train.y)
    return replace(whole, train=Silos(np.ascontiguousarray(x), np.ascontiguousarray(y), np.array([0, len(x)])),
                   test=None, own=None, parties=())  # fmt: skip


def join(
    address: str,
    credentials: Any,
    name: str,
    policy: Any,
    folder: str | Path,
    *,
    server: str = "",
    seeded: bool = False,
    times: Any = None,
    say: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> str:
    """Take part until the server says that it is over; returns why. What the policy forbids raises NotAllowed."""
    from atoll.crypto.keys import Refused
    from atoll.runtimes.network.audit import Audit, spent_this_month
    from atoll.runtimes.network.calls import Times
    from atoll.runtimes.network.message import Hello, Welcome, read_envelope, write_envelope
    from atoll.runtimes.network.transport import PartyTransport

    folder, times = Path(folder), times or Times()
    folder.mkdir(parents=True, exist_ok=True)
    data = part_of(policy.data)
    transport = PartyTransport(address, credentials, times=times, folder=folder)
    hello = write_envelope(Hello(name, int(data.train.sizes[0]), sample_layout(data)))
    audit = Audit(folder / "audit.jsonl")
    try:
        welcome = read_envelope(Welcome, transport.hello(hello))
        said = parse(welcome.job, f"the job of {address}")
        check_served(said.job)
        if hashlib.sha256(welcome.job.encode()).digest() != welcome.manifest:
            raise Refused("the job is not the one that its hash names: the server is broken or lies")
        # Everybody else is taken to be like this party: what a job spends and sends does not depend on their sizes.
        others = int(said.data.get("clients", 2)) if isinstance(said.data, Mapping) else 2
        made = assemble(said.job, remote(data, [int(data.train.sizes[0])] * max(others, welcome.number + 1)), said.seed)
        now = datetime.now().astimezone()
        policy.check(
            manifest_of(made, server, address),
            now=now,
            spent=spent_this_month(audit.path, now, but=welcome.manifest.hex()),
        )
        say(explain(said.job, remote(data, [int(data.train.sizes[0])] * max(others, 2)), said.seed))
        audit.append("joined", server=address, job=welcome.manifest.hex())
        return _take_part(transport, hello, welcome, made, data, said.seed, audit, policy, seeded, times, say, stop)
    finally:
        transport.close()
        audit.close()


def manifest_of(made: Assembled, server: str, address: str) -> Any:
    """Say what a job would do to this party, from the job itself and not from what the server says of it."""
    from atoll.core.tree import leaves
    from atoll.runtimes.network.policy import Manifest

    job, plan = made.job, made.plan
    share = plan.method.share(plan.method.init(plan.seed))
    down = sum(np.asarray(leaf).nbytes for _, leaf in leaves(share))
    schema = hashlib.sha256(repr(plan.method.schema).encode()).hexdigest()
    return Manifest(
        server=server, method=type(job.method).__name__.lower(), model=schema, parameters=plan.method.schema.size,
        rounds=job.rounds, cohort=made.wire.cohort, combine=type(job.channel.combine).__name__, real=True,
        noise=made.wire.noise, epsilon=made.ledger.of().epsilon(job.rounds) if made.ledger else None,
        up=plan.up, down=down, metrics=(), address=address,
    )  # fmt: skip


def answers_given(path: Path, job: str) -> int:
    """Count the questions of a job that this party has answered, also before it was started again."""
    import json

    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return len({line["question"] for line in lines if line.get("job") == job and "question" in line})


def within_policy(policy: Any, made: Assembled, answers: int) -> float | None:
    """Return the ε of so many answers. The party counts them itself: what round it is, only the server says."""
    from atoll.runtimes.network.policy import NotAllowed

    if policy.most_rounds is not None and answers > policy.most_rounds:
        raise NotAllowed(
            f"{policy.name}: most_rounds = {policy.most_rounds}, and the server asks again: raise it to go on"
        )
    spent = made.ledger.of().epsilon(answers) if made.ledger else None
    if policy.most_epsilon_job is not None and (spent is None or spent > policy.most_epsilon_job):
        raise NotAllowed(
            f"{policy.name}: most_epsilon_job = {policy.most_epsilon_job:g}, and answer {answers} would spend more: "
            "raise it to go on"
        )
    return spent


def _take_part(
    transport: Any, hello: bytes, welcome: Any, made: Assembled, data: Federated, seed: int, audit: Any, policy: Any,
    seeded: bool, times: Any, say: Callable[[str], None], stop: threading.Event | None,
) -> str:  # fmt: skip
    from atoll.crypto.keys import Refused
    from atoll.runtimes.network.message import (
        AnswerHead,
        QuestionHead,
        Receipt,
        read_envelope,
        read_tree,
        write_envelope,
        write_tree,
    )
    from atoll.runtimes.network.parcel import Header, header_of
    from atoll.runtimes.pool import Pool
    from atoll.runtimes.workers import Chunk, Worker

    handler: Any = replace(made.handlers["contribute"], watched=False, seeded=seeded)  # type: ignore[type-var]
    pool = Pool(Worker({"contribute": handler}, {"train": data.train}, seed, first=welcome.number), 1)
    memory: Mapping[str, Array] = {}
    given, spent = answers_given(audit.path, welcome.manifest.hex()), None
    answered: tuple[int, bytes, bytes] | None = None  # the last answer, should its receipt have been lost
    try:
        while stop is None or not stop.is_set():
            try:
                parcel = transport.pull()
            except Refused as reason:
                if HELLO_FIRST not in str(reason):
                    return str(reason)
                transport.hello(hello)
                continue
            if parcel is None:
                continue
            with parcel:
                head = read_envelope(QuestionHead, parcel.header.envelope)
                body = parcel.body.read()
            if answered is None or answered[0] != head.number:
                given += 1
                spent = within_policy(policy, made, given)
                began = time.perf_counter()
                chunk = Chunk(head.what, head.t, np.array([welcome.number]), memory, ())
                question = read_tree(body, len(body))
                sign = partial(transport.hello, hello)
                each, memory = _alive(partial(_answer, pool, chunk, question), sign, times.silence / 3)
                text = write_tree(each)
                header = header_of("answer", f"{head.run}/{head.number}", text)
                answer = AnswerHead(head.run, head.number, header.size, header.sha256, time.perf_counter() - began)
                answered = (head.number, write_envelope(answer), text)
            header = header_of("answer", f"{head.run}/{head.number}", answered[2])
            audit.left(job=welcome.manifest.hex(), question=head.number, asked=head.what, size=header.size,
                       digest=header.sha256.hex(), epsilon=spent)  # fmt: skip
            sealed = Header(header.kind, header.id, header.size, header.sha256, answered[1])
            try:
                receipt = read_envelope(Receipt, transport.push(sealed, answered[2]))
            except Refused as reason:
                if HELLO_FIRST not in str(reason):
                    return str(reason)
                transport.hello(hello)  # the server was started again, and asks anew
                continue
            say(
                f"round {head.t + 1}: sent {header.size:,} bytes"
                + ("" if receipt.accepted else f", refused: {receipt.reason}")
            )
        transport.leave()
        return "stopped by hand"
    finally:
        pool.close()


def _answer(pool: Any, chunk: Any, question: Any) -> tuple[dict[str, Array], dict[str, Array]]:
    """Answer in the child process; what it gives is copied, since the next answer takes its place."""
    ((answer, _),) = pool.answers([chunk], question)
    copy = [{name: np.array(leaf) for name, leaf in tree.items()} for tree in (answer.each, answer.memory)]
    return copy[0], copy[1]


def _alive(work: Callable[[], Any], sign: Callable[[], Any], every: float) -> Any:
    """Do work in a thread, giving a sign of life while it lasts."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # handed to the caller
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(every)
        if thread.is_alive():
            with suppress(Exception):  # a server that is away now may be back when the work is done
                sign()
    if failed:
        raise failed[0]
    return found[0]
