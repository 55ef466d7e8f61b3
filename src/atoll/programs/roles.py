"""What the questions of a program look like on the wire: declarations are checked, sealed leaves become plain bytes.

A program declares layouts as its handlers see them. On the wire a question also has its address (round `t`, `step`
within the round, and `used`, the last checkpoint of the hub), and a leaf that one role seals for another is a row of
bytes that the hub cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import get_args

import msgspec
import numpy as np

from atoll.core.method import DataSummary
from atoll.core.program import Agreed, Program
from atoll.core.question import Exposure, Layout, Leaf, Question, Range
from atoll.core.tree import Array
from atoll.core.wire import Mismatch
from atoll.crypto.keys import NONCE, TAG, Refused, refuse_if

HELLO, MEET, END = "roles.hello", "roles.meet", "roles.end"  # what the runtime asks of every role
MAX_HELLO = 2**20  # bytes of what a role says of itself
MAX_ROUNDS = 2**31 - 1
ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}", re.ASCII)
_ADDRESS = {
    "t": Leaf("int", range=Range(0, MAX_ROUNDS)),
    "step": Leaf("int", range=Range(0, MAX_ROUNDS)),
    "used": Leaf("int", range=Range(-1, MAX_ROUNDS)),
}
_BEFORE = {
    "hub and other roles": "the number of rows, the names of the columns, whether there is a label, and a hash of all "
    "ids together, salted with the job's: who can guess the whole list of ids can confirm it"
}


def runtime_questions(roles: Mapping[str, str]) -> dict[str, Question]:
    """Declare what is asked of every role at each start and at the end, in a job with these roles."""
    hello = Leaf("uint8", (MAX_HELLO,), upto=True)
    everybody = tuple(roles)
    hellos = {f"hellos/{role}": hello for role in roles}
    return {
        HELLO: Question(HELLO, Layout({}), Layout({"hello": hello}), everybody, _BEFORE, "plain"),
        MEET: Question(MEET, Layout(hellos), Layout({"session": Leaf("uint8", (32,))}), everybody, {}, "nothing"),
        END: Question(END, Layout({}), Layout({"done": Leaf("bool", ())}), everybody, {}, "nothing"),
    }


# --- what a program declares ------------------------------------------------------------------------------------------


def check_program_roles(program: Program) -> None:
    """Refuse roles that cannot be run."""
    for name, role in program.roles.items():
        if not ROLE.fullmatch(name):
            raise Mismatch(f"role {name!r}: a role is called by a few letters, digits and underscores")
        if role.many and role.holds == "nothing":
            raise Mismatch(f"role {name} is for many parties, whose data says how many: let it hold something")


def check_played_by_one(program: Program) -> None:
    """Refuse a role that many play, where each role is played by one party: over the network."""
    for name, role in program.roles.items():
        if role.many:
            raise Mismatch(
                f"role {name} is played by many parties, and over the network each role is played by one: simulate "
                "this job with atoll run, or write a program with a role for each party"
            )


def declared(program: Program, agreed: Agreed) -> dict[str, Question]:
    """Return what may be asked, by name; refuse declarations that contradict themselves or each other."""
    found: dict[str, Question] = {}
    for question in program.questions(agreed):
        if question.name in found or not _NAME.fullmatch(question.name) or question.name in (HELLO, MEET, END):
            raise Mismatch(f"question {question.name!r}: give each question a short name of its own")
        found[question.name] = question
    for question in found.values():
        _check_question(question, program)
        _check_seals(question, found, program)
    return found


def _check_question(question: Question, program: Program) -> None:
    name, roles = question.name, question.roles
    if not roles or not set(roles) <= set(program.roles):
        raise Mismatch(f"question {name} is for {roles}, and the program has {', '.join(program.roles)}")
    taken = sorted(_ADDRESS.keys() & question.asks.leaves.keys())
    if taken:
        raise Mismatch(f"question {name}: every question has '{taken[0]}' already, so call this leaf something else")
    plain = [path for path, leaf in question.answers.leaves.items() if leaf.shape is None]
    if plain:
        raise Mismatch(f"question {name}: leaf '{plain[0]}' of the answer is no array: give it the shape ()")
    if question.exposure not in get_args(Exposure):
        raise Mismatch(f"question {name}: exposure {question.exposure!r} is not one of {', '.join(get_args(Exposure))}")
    bare = sorted(question.answers.leaves.keys() - question.seals.keys())
    if question.exposure == "sealed" and bare:
        raise Mismatch(f"question {name} is declared sealed, and leaf '{bare[0]}' of its answer travels open: seal it")
    if question.contributes and not question.reveals:
        raise Mismatch(f"question {name} gives something of private data: say in reveals who learns what")
    if question.times < 1:
        raise Mismatch(f"question {name}: times={question.times}, and it is asked at least once")
    if any(program.roles[role].many for role in roles):
        _check_question_to_many(question)


def _check_question_to_many(question: Question) -> None:
    """Parties that play a role together are asked as one group, and have no keys of their own."""
    name = question.name
    if len(question.roles) > 1:
        raise Mismatch(f"question {name} is for a role that many play, and for others: declare one for each role")
    if question.seals or question.opens:
        raise Mismatch(f"question {name} is for a role that many play, which neither seals nor opens: send it open")
    short = [path for path, leaf in question.answers.leaves.items() if leaf.upto]
    if short:
        raise Mismatch(f"question {name}: leaf '{short[0]}' of many parties has one shape: leave upto out")


def _check_seals(question: Question, found: Mapping[str, Question], program: Program) -> None:
    name = question.name
    for leaf, reader in question.seals.items():
        if leaf not in question.answers.leaves or reader not in program.roles or reader in question.roles:
            raise Mismatch(f"question {name} seals leaf '{leaf}' for {reader}: name a leaf of the answer, another role")
        if program.roles[reader].many:
            raise Mismatch(f"question {name} seals leaf '{leaf}' for {reader}, which many play: seal for one party")
    for leaf, origin in question.opens.items():
        source = found.get(origin.question)
        if leaf not in question.asks.leaves or len(question.roles) != 1:
            raise Mismatch(f"question {name} opens '{leaf}': name a leaf of the question, which is for one role")
        if source is None or origin.role not in source.roles or source.seals.get(origin.leaf) != question.roles[0]:
            raise Mismatch(
                f"question {name} opens '{leaf}', and {origin.role} seals no leaf '{origin.leaf}' for "
                f"{question.roles[0]} in answer to '{origin.question}'"
            )
        mine, theirs = question.asks.leaves[leaf], source.answers.leaves[origin.leaf]
        if (mine.dtype, mine.shape, mine.upto) != (theirs.dtype, theirs.shape, theirs.upto):
            raise Mismatch(f"question {name} opens '{leaf}' with another layout than {origin.question} seals it with")


# --- on the wire ------------------------------------------------------------------------------------------------------


def on_wire(question: Question, *, axis: bool, parties: int = 1) -> Question:
    """Return a question as it travels: with its address, sealed leaves as bytes.

    With `axis` the leaves of an answer have a leading axis of parties, as a hub collects them.
    """
    asks = {path: _blob(leaf) if path in question.opens else leaf for path, leaf in question.asks.leaves.items()}
    told = {path: _blob(leaf) if path in question.seals else leaf for path, leaf in question.answers.leaves.items()}
    if axis:
        told = {path: _rowed(leaf, parties) for path, leaf in told.items()}
    return question._replace(asks=Layout({**_ADDRESS, **asks}), answers=Layout(told))


def _rowed(leaf: Leaf, parties: int) -> Leaf:
    return leaf if leaf.upto else msgspec.structs.replace(leaf, shape=(parties, *(leaf.shape or ())))


def _blob(leaf: Leaf) -> Leaf:
    size = prod(leaf.shape or ()) * np.dtype(leaf.dtype).itemsize
    return Leaf("uint8", (size + NONCE + TAG,), upto=leaf.upto)


def to_bytes(array: Array, leaf: Leaf) -> bytes:
    """Write an array for sealing: its numbers only, since its layout is declared."""
    return np.ascontiguousarray(array, np.dtype(leaf.dtype).newbyteorder("<")).tobytes()


def from_bytes(raw: bytes, leaf: Leaf, where: str) -> Array:
    """Read what `to_bytes` wrote."""
    dtype = np.dtype(leaf.dtype).newbyteorder("<")
    shape = (len(raw) // dtype.itemsize,) if leaf.upto else leaf.shape or ()
    refuse_if(len(raw) != prod(shape) * dtype.itemsize, f"{where} has {len(raw)} bytes, which its layout has not")
    odd = dtype == np.bool_ and bool(set(raw) - {0, 1})
    refuse_if(odd, f"{where} has bools that are neither true nor false")
    return np.frombuffer(raw, dtype).reshape(shape)


# --- what roles bring -------------------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder(order="sorted").encode
_summary: msgspec.msgpack.Decoder[DataSummary] = msgspec.msgpack.Decoder(DataSummary)


def write_summary(summary: DataSummary) -> bytes:
    """Write what a role brings, in the one way there is."""
    return _encode(summary)


def read_summary(raw: bytes, role: str) -> DataSummary:
    """Read what a role says that it brings; a stranger wrote it."""
    try:
        found = _summary.decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refused(f"what role {role} brings cannot be read: {error}") from None
    refuse_if(_encode(found) != raw, f"what role {role} brings is not as it is written: it is damaged")
    x, y = found.sample.leaves.get("x"), found.sample.leaves.get("y")
    layout = {"x": Leaf("float64", x.shape if x else ())} | ({"y": Leaf("float64", ())} if y else {})
    whole = x is not None and x.shape is not None and len(x.shape) == 1 and found.sample == Layout(layout)
    refuse_if(not whole, f"role {role} brings rows that are no columns of 64-bit numbers")
    refuse_if(not 0 <= found.samples < 2**40, f"role {role} brings {found.samples} rows: nobody has so many")
    refuse_if(found.parties != 1, f"role {role} says that {found.parties} parties play it: one does")
    named = len(found.names) == (x.shape or (0,))[0] if x else False
    odd = not named or not all(0 < len(name) <= 200 and name.isprintable() for name in found.names)
    refuse_if(odd, f"role {role} has a column without a printable name")
    refuse_if(len(found.ids) not in (0, 32), f"role {role} has a hash of ids of {len(found.ids)} bytes: it has 32")
    return found


def check_holdings(program: Program, agreed: Agreed) -> None:
    """Refuse data that a role should not bring, or the lack of what it should; then what the program itself refuses."""
    for name, role in program.roles.items():
        summary = agreed.data[name]
        if role.many:
            _check_parties(name, summary)
            continue
        x, labelled = (summary.sample.leaves["x"].shape or (0,))[0], "y" in summary.sample.leaves
        if role.holds == "nothing" and (summary.samples or x):
            raise Mismatch(f"role {name} holds nothing, and brings {summary.samples:,} rows: leave its data out")
        if role.holds != "nothing" and not summary.samples:
            raise Mismatch(f"role {name} brings no rows: name its file and id column in its data")
        if role.holds in ("features", "samples") and not x:
            raise Mismatch(f"role {name} brings no columns: add some to its file, or to the features of its data")
        if role.holds in ("labels", "samples") and not labelled:
            raise Mismatch(f"role {name} brings no label: name its column, label = …, in its data")
        if role.holds == "features" and labelled:
            raise Mismatch(f"role {name} holds columns only, and brings a label: leave label out of its data")
    program.check(agreed)


def _check_parties(role: str, summary: DataSummary) -> None:
    if summary.parties < 1 or not summary.samples:
        raise Mismatch(f"role {role} brings no rows: give it the data of a federation")


def check_aligned(agreed: Agreed, roles: tuple[str, ...]) -> None:
    """Refuse roles whose rows are not the same: a program calls this from its `check`."""
    first, *others = roles
    for role in roles:
        if not agreed.data[role].ids:
            raise Mismatch(f"the rows of role {role} have no ids: name the id column in its data, or give ids")
    for other in others:
        a, b = agreed.data[first], agreed.data[other]
        if a.samples != b.samples:
            raise Mismatch(
                f"role {first} has {a.samples:,} rows and role {other} {b.samples:,}: keep the rows that both have"
            )
        if a.ids != b.ids:
            raise Mismatch(f"the rows of roles {first} and {other} have different ids: keep the rows that both have")
