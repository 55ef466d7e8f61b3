"""The records that travel between server and party: small, of known fields only, measured before they are parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from atoll.core.question import Fault, Layout, refuse_if
from atoll.data.schema import TableSchema
from atoll.runtimes.network.messages.trees import BROKEN, SORTED

# Two versions that follow each other speak to each other, in the words of the older one: the newer side leaves out what
# the other does not know (`since`), and whoever is greeted by a newer party reads past what it does not know itself.
PROTOCOL = 3
FIRST = 3  # 2: release 0.1, which is told at its hello that one side is older
_Count = Annotated[int, Meta(ge=0, lt=2**48)]
# A party makes lists and models of such lengths before its policy can check the job.
_Number = Annotated[int, Meta(ge=0, lt=2**20)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]
_Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Word = Annotated[str, Meta(max_length=64, pattern=r"\A[\w.:@+-]+\Z")]
_Asked = Annotated[
    str, Meta(max_length=128, pattern=r"\A\w[\w.:@+-]*(/\w[\w.:@+-]*)?\Z")
]  # a question: step, or phase/step


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A record that says its kind. More or less than its fields is refused, and text that would garble a screen.

    `since` names fields that came with a later version than the first, and with which; each has a default, which means
    what was meant before.
    """

    since: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            text = getattr(self, name)
            lines = text.replace("\n", "").replace("\t", "") if name == "job" else text
            odd = isinstance(text, str) and not lines.isprintable()
            refuse_if(odd, "form", f"{name}: a text that has control characters, which no screen should get")


class Hello(Envelope, frozen=True, tag="hello"):
    """A party comes: what it calls itself (the server goes by its key), how many samples it has, what one is and what
    its columns mean; or an edge, which has none of its own: its samples are those of the parties below it.
    """

    name: _Word
    samples: _Count
    data: Layout
    edge: bool = False
    columns: TableSchema | None = None  # where they have names
    place: Annotated[bytes, Meta(max_length=16)] = b""  # names its folder: two of one party are told apart by it
    version: int = PROTOCOL


class Welcome(Envelope, frozen=True, tag="welcome"):
    """It may take part: in this run, under this number; the job, its manifest's hash, what answers look like, and who
    else may (a name is worth the key that the party itself knows it by).
    """

    run: _Word
    number: _Number
    job: Annotated[str, Meta(max_length=2**20)]
    manifest: _Digest
    answers: Annotated[dict[_Asked, Layout], Meta(max_length=1024)]
    members: Annotated[dict[_Word, _Number], Meta(max_length=2**16)] = {}
    classes: _Number = 0  # 0: the labels are numbers
    data: Layout = Layout({})  # what one sample is
    # How the key of each member begins, in the order of names: of two keys in a party's own file it takes that one.
    keys: Annotated[bytes, Meta(max_length=2**18)] = b""
    successor: Annotated[bytes, Meta(max_length=96)] = b""  # the next key of the server, signed by this one
    version: int = PROTOCOL


class QuestionHead(Envelope, frozen=True, tag="question"):
    """What is asked, in which round, in how many seconds from now the answer is due, and what body follows.

    `used` is the number of the last ask whose answer by this party was used, or -1.
    """

    run: _Word
    number: _Count
    what: _Asked
    t: _Count
    seconds: _Seconds
    size: _Count
    sha256: _Digest
    used: Annotated[int, Meta(ge=-1, lt=2**31)] = -1


class AnswerHead(Envelope, frozen=True, tag="answer"):
    """Which question is answered, what body follows, how many seconds the work took; or why there is no answer."""

    run: _Word
    number: _Count
    size: _Count
    sha256: _Digest
    seconds: _Seconds
    declined: Annotated[str, Meta(max_length=500)] = ""
    code: Annotated[str, Meta(max_length=64)] = ""  # of the reason, for who reads no sentences


class Receipt(Envelope, frozen=True, tag="receipt"):
    """Whether something was accepted, and if not, why."""

    accepted: bool
    reason: Annotated[str, Meta(max_length=1000)] = ""


class Goodbye(Envelope, frozen=True, tag="goodbye"):
    """A party leaves; why, if its own policy forbids to take part."""

    reason: Annotated[str, Meta(max_length=500)] = ""


class _Stamp(msgspec.Struct):
    """What a record of any version says."""

    type: str
    version: int = 0


AnyEnvelope = TypeVar("AnyEnvelope", bound=Envelope)
MOST_BYTES = {Hello: 2**18, Welcome: 2**22, QuestionHead: 2**10, AnswerHead: 2**12, Receipt: 2**13, Goodbye: 2**12}
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in MOST_BYTES}
_stamp = msgspec.msgpack.Decoder(_Stamp)


def spoken_with(version: int) -> int:
    """Return the version that is spoken with a peer that says this one."""
    return min(version, PROTOCOL)


def write_envelope(envelope: Envelope, version: int | None = None) -> bytes:
    """A record as bytes, for a peer of a version (default: this one's): equal records give equal bytes."""
    if version in (None, PROTOCOL):
        return SORTED.encode(envelope)
    late = [name for name, came in envelope.since.items() if came > version]
    said: dict[str, object] = msgspec.to_builtins(envelope, builtin_types=(bytes,))
    said |= {"version": version} if "version" in said else {}
    return SORTED.encode({name: value for name, value in said.items() if name not in late})


def _known(kind: type[Envelope], data: bytes) -> bytes:
    """Leave out of a newer peer's record what is not known here."""
    said = msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw])
    return SORTED.encode({name: value for name, value in said.items() if name in ("type", *kind.__struct_fields__)})


def read_envelope(kind: type[AnyEnvelope], data: bytes) -> AnyEnvelope:
    """Read a record of the expected kind or raise a Fault; too long a record is not even looked at."""
    most, name = MOST_BYTES[kind], kind.__name__
    refuse_if(len(data) > most, "size", f"{len(data)} bytes: a {name} has at most {most}")
    try:
        stamp = _stamp.decode(data)
        theirs = stamp.version if kind in (Hello, Welcome) else PROTOCOL
        server, party = (theirs, PROTOCOL) if kind is Welcome else (PROTOCOL, theirs)
        remedy = f"upgrade {'the server' if server < party else 'this party'} with pip install --upgrade atoll"
        apart = min(server, party) < FIRST or abs(server - party) > 1 or (kind is Welcome and theirs > PROTOCOL)
        refuse_if(apart, "version", f"the server speaks version {server}, this party {party}: {remedy}")
        return _decoders[kind].decode(_known(kind, data) if theirs > PROTOCOL else data)
    except BROKEN:
        raise Fault("form", f"the bytes are no {name}: they are damaged, or of another version") from None
