"""The answers to a question: which are open, and how what was stored of them is read and added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from atoll.core.effects import Ask
from atoll.core.errors import AtollError
from atoll.core.party import ragged
from atoll.core.question import Question
from atoll.core.tree import Array, leaves
from atoll.runtimes.local.worker import sum_type
from atoll.runtimes.network.messages.answers import read_answer
from atoll.runtimes.network.messages.payload import QuestionPayload
from atoll.runtimes.network.server.tables import Answer


@dataclass
class AskedQuestion:
    """A question that parties may answer now."""

    number: int
    what: str
    t: int
    questions: Mapping[int, QuestionPayload]  # by party
    opened: float  # by the hub's clock
    done: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)  # of those
    taken: set[int] = field(default_factory=set)  # answers that were handed over

    @property
    def missing(self) -> set[int]:
        return self.questions.keys() - self.done

    def ends(self, ask: Ask) -> bool:
        """Whether nothing more may come to it: where answers may come late, when all were taken or it is too old."""
        return (
            ask.max_staleness is None
            or self.taken == self.questions.keys()
            or self.t <= int(ask.body["t"]) - ask.max_staleness
        )


class LostAnswer(AtollError):
    """An answer that is not on the disk as it was accepted."""

    code = "lost_answer"

    def __init__(self, question: int, answer: Answer, why: str) -> None:
        super().__init__(f"{answer.file} {why}")
        self.question, self.party = question, answer.party


def _body(question: int, answer: Answer) -> bytes:
    """Read an answer as it was accepted."""
    assert answer.file
    try:
        data = answer.file.read_bytes()
    except OSError as error:
        raise LostAnswer(question, answer, f"cannot be read: {error.strerror}") from None
    if sha256(data).hexdigest() != answer.sha256:
        raise LostAnswer(question, answer, "is damaged: it is not what was written")
    return data


class Collected(NamedTuple):
    """What answers hold together: rows of each party, sums of what is folded, bytes that came."""

    each: dict[str, Array]
    sums: dict[str, Array]
    bytes: int


def collect(ask: Ask, question: Question, found: Iterable[tuple[int, int, Answer]]) -> Collected:
    """Read stored answers, in the order of the parties: sums do not depend on who came first.

    Each comes with its age and the number of its question; LostAnswer names one that the disk has not kept.
    """
    sums: dict[str, Array] = {}
    each: dict[str, list[Array]] = {}
    came = 0
    for age, number, answer in found:
        data = _body(number, answer)
        came += len(data)
        for name, leaf in leaves(read_answer(question, data)):
            row = np.asarray(leaf)
            if name not in ask.fold:
                # A copy: what is read is a view of the whole answer, which may go.
                each.setdefault(name, []).append(row.copy())
            elif name in sums:
                sums[name] += row[0]
            else:
                sums[name] = row[0].astype(sum_type(row, wide=ask.wide))
        if ask.max_staleness is not None:
            each.setdefault("age", []).append(np.array([age]))
    short = {path for path, leaf in question.answers.leaves.items() if leaf.upto}
    rows = {name: ragged(parts) if name in short else np.concatenate(parts) for name, parts in each.items()}
    return Collected(rows, sums, came)
