"""Nothing secret is in what objects and exceptions say of themselves."""

from __future__ import annotations

import base64
import traceback

import msgspec
import pytest
from secagg_cohort import Cohort

from atoll.crypto.keys import Identity, Pair
from atoll.crypto.secagg import STEPS, Abort, SecureClient
from atoll.crypto.secagg.client import RoundState


def spellings(secret: bytes) -> set[str]:
    """How a text might give 32 bytes away; eight of them in a row are enough to count."""
    parts = [secret, *(secret[i : i + 8] for i in range(0, len(secret) - 7, 8))]
    numbers = {str(int.from_bytes(secret, order)) for order in ("big", "little")}
    texts = {p.hex() for p in parts} | {base64.b64encode(secret).decode().rstrip("=")}
    return numbers | texts | {repr(p)[2:-1] for p in parts} | {", ".join(map(str, p)) for p in parts}


def test_the_spellings_would_be_found() -> None:
    secret = bytes(range(100, 132))
    for text in (repr(secret), str(list(secret)), secret.hex(), base64.b64encode(secret).decode()):
        assert any(s in text for s in spellings(secret))


def test_nothing_secret_is_said() -> None:
    cohort = Cohort(5)
    secrets, said = [key.secret for key in cohort.identities.values()], []
    inbox = cohort.until("advertise")
    for step in STEPS:
        for i, client in cohort.clients.items():
            memory = msgspec.msgpack.decode(client.dump(), type=RoundState)
            secrets += [s for s in (memory.c, memory.s, memory.seed) if s]
            secrets += [both[cut] for both in memory.shares.values() for cut in (slice(1, 33), slice(34, 66))]
            said += [repr(client), str(client), repr(client._memory), repr(client.party), f"{client.party.spent!r}"]
            said += [repr(cohort.server), repr(Pair.of(memory.c)) if memory.c else ""]
            for bad in (b"", inbox[i][:-1], inbox[i][:-1] + bytes([inbox[i][-1] ^ 1]), bytes(100_000)):
                doomed = SecureClient.load(client.dump(), cohort.parties[i])
                try:
                    cohort.answer(step, i, bad, doomed)
                except Abort as fault:
                    said.append("".join(traceback.format_exception(fault)))
        for i, message in inbox.items():
            cohort.server.take(i, cohort.answer(step, i, message))
        inbox = cohort.server.turn() if step != "unmask" else {}
    said.append(repr(cohort.server.finish()))
    assert len(secrets) > 100
    assert len(said) > 150
    everything = "\n".join(said)
    for secret in secrets:
        assert not [s for s in spellings(secret) if s in everything]


def test_secrets_are_dropped_when_they_have_done_their_work() -> None:
    cohort = Cohort(5)
    inbox = cohort.until("consistent")
    memory = msgspec.msgpack.decode(cohort.clients[0].dump(), type=RoundState)
    assert (memory.s, memory.seed) == (b"", b"")
    with pytest.raises(Abort):
        cohort.answer("consistent", 0, b"")
    assert msgspec.msgpack.decode(cohort.clients[0].dump(), type=RoundState) == RoundState("over")
    assert len(inbox) == 5


def test_keys_keep_to_themselves() -> None:
    assert repr(Identity.new()) == "Identity()"
    assert repr(Pair.new()) == "Pair()"
    kept = Identity.new()
    assert Identity.of(kept.secret).public == kept.public
