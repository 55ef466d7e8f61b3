"""What release 0.2 says is understood and said by every later one: messages, job texts with their hashes, parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import pytest
from record_release import ENVELOPES, RELEASE, fields_of, messages, parts

from atoll.core.question import Fault, Layout
from atoll.job.assemble import agreement_of
from atoll.job.catalogue import table
from atoll.job.file import dumps, parse, to_table
from atoll.runtimes.network.messages import envelope as wire
from atoll.runtimes.network.messages.envelope import Hello, Welcome, read_envelope, write_envelope

SAID = json.loads((RELEASE / "messages.json").read_text())
JOBS = json.loads((RELEASE / "jobs.json").read_text())
VERSION = 3  # of the release


@pytest.mark.parametrize("name", sorted(SAID))
def test_messages_of_the_release_are_read_and_written_byte_by_byte(name: str) -> None:
    if name in ENVELOPES:
        envelope, data = ENVELOPES[name], bytes.fromhex(SAID[name])
        assert write_envelope(envelope, VERSION) == data
        assert write_envelope(read_envelope(type(envelope), data), VERSION) == data
    else:
        assert messages()[name] == SAID[name]


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_of_the_release_keeps_its_text_and_its_hash(name: str) -> None:
    text = JOBS[name]["text"]
    said = parse(text, name)
    assert dumps(to_table(said.job, said.data, said.seed)) == text
    assert agreement_of(text).hex() == JOBS[name]["hash"]


def test_parts_have_the_fields_of_the_release_and_say_since_when_they_have_others() -> None:
    then, now = json.loads((RELEASE / "parts.json").read_text()), parts()
    for part, had in then.items():
        assert now[part] == had, f'{part}: give what is new field(default=…, metadata={{"since": "…"}})'


@dataclass(frozen=True)
class Grown:
    """A part of a release to come."""

    old: float = 1.0
    new: str = field(default="as before", metadata={"since": "0.3"})


def test_a_default_that_is_added_leaves_the_text_as_it_was_and_a_choice_is_said() -> None:
    assert list(table(Grown())) == ["use", "old"]  # type: ignore[call-overload]
    assert table(Grown(new="other"))["new"] == "other"  # type: ignore[index]
    assert fields_of(Grown) == ["old"]


class NextHello(wire.Envelope, frozen=True, tag="hello"):
    """The hello of a version to come."""

    since: ClassVar[Mapping[str, int]] = {"mood": VERSION + 1}
    name: str
    samples: int
    data: Layout
    mood: str = "fine"
    version: int = VERSION + 1


def test_the_next_version_is_understood_in_the_words_of_this_one_and_the_one_after_is_refused() -> None:
    newer = msgspec.msgpack.encode(NextHello("ada", 3, Layout({})))
    heard = read_envelope(Hello, newer)
    assert (heard.name, heard.samples, wire.spoken_with(heard.version)) == ("ada", 3, VERSION)
    for version in (VERSION - 1, VERSION + 2):
        with pytest.raises(Fault, match=f"the server speaks version {VERSION}, this party {version}: upgrade"):
            read_envelope(Hello, msgspec.msgpack.encode(NextHello("ada", 3, Layout({}), version=version)))
    late = Welcome("r", 0, "", bytes(32), {}, version=VERSION + 1)
    with pytest.raises(
        Fault, match=f"the server speaks version {VERSION + 1}, this party {VERSION}: upgrade this party"
    ):
        read_envelope(Welcome, write_envelope(late))


def test_this_version_speaks_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PROTOCOL", VERSION + 1)
    old = bytes.fromhex(SAID["hello"])
    assert read_envelope(Hello, old).version == VERSION
    assert wire.spoken_with(VERSION) == VERSION
    newer = NextHello("ada", 3, Layout({}))
    assert "mood" in msgspec.msgpack.decode(write_envelope(newer))
    assert read_envelope(Hello, write_envelope(newer, VERSION)) == Hello("ada", 3, Layout({}), version=VERSION)
    welcome = write_envelope(Welcome("r", 0, "", bytes(32), {}, version=VERSION + 1), VERSION)
    assert read_envelope(Welcome, welcome).version == VERSION


@pytest.mark.parametrize("kind", [type(one) for one in ENVELOPES.values()])
def test_what_is_added_to_a_record_has_a_default(kind: type[wire.Envelope]) -> None:
    added = [f for f in msgspec.structs.fields(kind) if f.name in kind.since]
    assert not any(f.required for f in added)
