"""Users of LightSecAgg refuse what they should not answer, the server what it should not take, both unsafe settings."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from light_cohort import KNOWN, answer, clients_of, light_run, refuses, run_to

from atoll.crypto import field as gf
from atoll.crypto import keys, light
from atoll.crypto.field import P
from atoll.crypto.keys import Refused
from atoll.crypto.light import STEPS, Light, LightClient, LightServer
from atoll.crypto.rehearse import rehearse_light
from atoll.crypto.secagg import Abort

pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


def test_steps_come_in_order_and_once() -> None:
    for at, step in enumerate(STEPS):
        for early in STEPS[at + 1 :]:
            clients, _, told = run_to(step)
            refuses(clients[0], early, told[0], f"{early} was asked for when {step} is due")
        clients, _, told = run_to(step)
        answer(clients[0], step, told[0])
        refuses(clients[0], step, told[0], f"{step} was asked for")


def forged(bundle: bytes, change: Callable[[dict[int, bytes]], None]) -> bytes:
    adverts = dict(unpack(bundle, type=list[tuple[int, bytes]]))
    change(adverts)
    return pack(list(adverts.items()))


def swap_signature(adverts: dict[int, bytes]) -> None:
    adverts[1] = adverts[1][:32] + adverts[2][32:]


def own_key(adverts: dict[int, bytes]) -> None:
    """The server's own key in the place of party 1's, signed by somebody who is not party 1."""
    key = keys.Pair.new().public
    adverts[1] = key + KNOWN[50].sign(light_run().statement(1, key))


def mine_changed(adverts: dict[int, bytes]) -> None:
    key = keys.Pair.new().public
    adverts[0] = key + KNOWN[0].sign(light_run().statement(0, key))


def same_key(adverts: dict[int, bytes]) -> None:
    key = adverts[1][:32]
    adverts[2] = key + KNOWN[2].sign(light_run().statement(2, key))


def low_order(adverts: dict[int, bytes]) -> None:
    adverts[1] = bytes(32) + KNOWN[1].sign(light_run().statement(1, bytes(32)))


def stranger(adverts: dict[int, bytes]) -> None:
    adverts[50] = bytes(32) + KNOWN[50].sign(light_run().statement(50, bytes(32)))


def few(adverts: dict[int, bytes]) -> None:
    for i in (1, 2, 3):
        del adverts[i]


@pytest.mark.parametrize(("change", "words"), [
    (swap_signature, "party 1 did not sign"), (own_key, "party 1 did not sign"), (mine_changed, "my key"),
    (lambda a: a.pop(0), "my key"), (same_key, "two parties with one key"), (low_order, "low order"),
    (stranger, "party 50 is not on the roster"), (few, "2 keys: 3 users"),
    (lambda a: a.update({1: a[1][:-1]}), "95 bytes by party 1"), (lambda a: a.update({1: b""}), "0 bytes by party 1"),
])  # fmt: skip
def test_bundles_that_are_refused(change: Callable[[dict[int, bytes]], None], words: str) -> None:
    clients, _, told = run_to("share")
    refuses(clients[0], "share", forged(told[0], change), words)


@pytest.mark.parametrize("other", [
    {"session": b"another"}, {"round_no": 1}, {"model": b"another"}, {"privacy": 2, "target": 4}, {"size": 8}, {"n": 6},
], ids=str)  # fmt: skip
def test_a_signature_is_for_one_round_of_one_setting(other: dict[str, object]) -> None:
    clients, _, told = run_to("share")
    away = LightClient(light_run(**other), 1, KNOWN[1])  # type: ignore[arg-type]
    refuses(clients[0], "share", forged(told[0], lambda a: a.update({1: away.advertise()})), "party 1 did not sign")


@pytest.mark.parametrize("step", STEPS[1:])
def test_what_cannot_be_read_is_refused(step: str) -> None:
    clients, _, told = run_to(step)
    junk = [b"", b"\xc1", told[0][:-1], told[0] + b"\0", pack({1: 2}), pack([1.5]), bytes.fromhex("ddffffffff")]
    for client, data in zip(clients.values(), junk, strict=False):
        refuses(client, step, data, "cannot be read")
    clients, _, told = run_to(step)
    for client, data in zip(clients.values(), junk[5:], strict=False):
        refuses(client, step, data, "cannot be read")
    refuses(clients[2], step, bytes(100_000), "100000 bytes")


def letters_of(inbox: bytes) -> dict[int, bytes]:
    return dict(unpack(inbox, type=list[tuple[int, bytes]]))


def test_inboxes_that_are_refused() -> None:
    def check(change: Callable[[dict[int, bytes], dict[int, bytes]], object], words: str) -> None:
        clients, _, told = run_to("upload")
        mine, theirs = letters_of(told[0]), letters_of(told[1])
        change(mine, theirs)
        refuses(clients[0], "upload", pack(list(mine.items())), words)

    check(lambda mine, theirs: mine.update({2: theirs[2]}), "sealed by party 2 for party 0")  # another's letter
    check(lambda mine, theirs: mine.update({2: mine[3], 3: mine[2]}), "sealed by party 2 for party 0")  # swapped
    check(lambda mine, theirs: mine.update({1: theirs[0]}), "sealed by party 1 for party 0")  # sent back
    check(lambda mine, theirs: mine.update({2: mine[2][:-1] + bytes([mine[2][-1] ^ 1])}), "sealed by party 2")
    check(lambda mine, theirs: mine.update({2: mine[2][:20]}), "20 bytes")
    check(lambda mine, theirs: mine.update({0: mine[2]}), "party 0, who has no key here")
    check(lambda mine, theirs: [mine.pop(i) for i in (1, 2, 3)], "2 users shared: 3 must")


def test_letters_of_another_round_are_refused() -> None:
    clients, _, told = run_to("upload")
    _, _, before = run_to("upload")
    mixed = letters_of(told[0]) | {2: letters_of(before[0])[2]}
    refuses(clients[0], "upload", pack(list(mixed.items())), "sealed by party 2")


@pytest.mark.parametrize("step", ["share", "upload"])
def test_a_party_twice_is_refused(step: str) -> None:
    clients, _, told = run_to(step)
    pairs = unpack(told[0], type=list[tuple[int, bytes]])
    refuses(clients[0], step, pack([*pairs[:-1], pairs[0]]), "a party twice")


@pytest.mark.parametrize(("share", "words"), [
    (gf.to_bytes(np.array([0, 1, P, 2], np.uint32)), f"party 1 sent element {P}"),
    (gf.to_bytes(np.array([0, 1, 2**32 - 1, 2], np.uint32)), "party 1 sent element 4294967295"),
    (bytes(12), "party 1 sent 12 bytes"), (bytes(20), "party 1 sent 20 bytes"), (b"", "party 1 sent 0 bytes"),
])  # fmt: skip
def test_shares_that_are_not_of_the_field_are_refused(share: bytes, words: str) -> None:
    """Party 1 seals what is no share: the seal is right, what is in it is not."""
    clients, _, told = run_to("upload")
    about, one = clients[1].light, clients[1]
    key = light._letter_key(about, one._secrets[0], 1, 0)
    box = keys.seal(key, share, context=about.context, i=1, j=0)
    mine = letters_of(told[0]) | {1: box}
    refuses(clients[0], "upload", pack(list(mine.items())), words)


@pytest.mark.parametrize("x", [
    np.zeros(6, np.uint32), np.zeros(8, np.uint32), np.zeros((1, 7), np.uint32), np.zeros(7, np.int64), np.zeros(7),
    np.full(7, P, np.uint32),
], ids=lambda x: f"{x.dtype}{x.shape}")  # fmt: skip
def test_vectors_that_are_not_of_the_field_are_refused(x: np.ndarray) -> None:
    clients, _, told = run_to("upload")
    with pytest.raises(Abort, match="a vector is 7 uint32 below"):
        clients[0].upload(told[0], x)
    refuses(clients[0], "upload", told[0], "when nothing is due")


@pytest.mark.parametrize(("names", "words"), [
    ([0, 1], "2 survivors"), ([], "without me"), ([1, 2, 3], "without me"), ([0, 1, 1, 2], "a party twice"),
    ([0, 1, 2, 5], r"\[5\] as survivors"), ([0, 1, 2, -1], r"\[-1\] as survivors"),
])  # fmt: skip
def test_survivors_that_are_refused(names: list[int], words: str) -> None:
    clients, _, _ = run_to("recover")
    refuses(clients[0], "recover", pack(names), words)


def test_survivors_that_shared_nothing_are_refused() -> None:
    about = light_run()
    clients, server = clients_of(about), LightServer(about)
    for i, client in clients.items():
        server.take(i, client.advertise())
    told = server.turn()
    for i in (0, 1, 2):
        server.take(i, clients[i].share(told[i]))
    told = server.turn()
    answer(clients[0], "upload", told[0])
    refuses(clients[0], "recover", pack([0, 1, 2, 3]), r"\[3\] as survivors")


def test_only_one_list_of_survivors_is_answered() -> None:
    clients, _, told = run_to("recover")
    clients[0].recover(pack([0, 1, 2]))
    refuses(clients[0], "recover", told[0], "when nothing is due")


@pytest.mark.parametrize("step", STEPS)
def test_the_server_refuses_and_goes_on(step: str) -> None:
    clients, server, told = run_to(step)
    for bad in (b"", bytes(7), bytes(10**6), b"\xff" * 28, b"\xff" * 16):
        with pytest.raises(Abort):
            server.take(0, bad)
    for i in (1, 2, 3):
        server.take(i, answer(clients[i], step, told[i]))
    with pytest.raises(Abort, match="party 1 has answered already"):
        server.take(1, b"")
    with pytest.raises(Abort, match="party 50 has no part"):
        server.take(50, b"")
    at = STEPS.index(step)
    for now in STEPS[at + 1 :]:
        told = server.turn()
        assert set(told) == {1, 2, 3}
        for i in (1, 2, 3):
            server.take(i, answer(clients[i], now, told[i]))
    # Whoever fails at the last step is still in the sum.
    assert server.survivors == ((0, 1, 2, 3, 4) if step == "recover" else (1, 2, 3))
    assert server.finish().tolist() == [0] * 7
    with pytest.raises(Abort, match="after the end"):
        server.take(1, b"")


def test_the_server_wants_a_letter_to_everybody() -> None:
    clients, server, told = run_to("share")
    letters = letters_of(clients[0].share(told[0]))
    for wrong in ({i: letters[i] for i in (1, 2, 3)}, letters | {50: letters[1]}, letters | {1: letters[1][:-1]}):
        with pytest.raises(Abort, match=r"party 0 did not write a letter|bytes: "):
            server.take(0, pack(list(wrong.items())))
    server.take(0, pack(list(letters.items())))


def test_the_server_takes_steps_in_order() -> None:
    _, server, _ = run_to("share")
    with pytest.raises(Abort, match="recover was closed when share is due"):
        server.finish()
    _, server, _ = run_to("recover")
    with pytest.raises(Abort, match="upload was closed when recover is due"):
        server.turn()


@pytest.mark.parametrize(("more", "words"), [
    ({"privacy": 0}, "at least one"), ({"privacy": 2}, "it is at least 4"), ({"privacy": 3}, "it is at least 5"),
    ({"target": 6}, "only 5 parties"), ({"size": 0}, "at least one number"), ({"round_no": -1}, "count from 0"),
], ids=str)  # fmt: skip
def test_settings_that_are_not_safe_are_refused(more: dict[str, int], words: str) -> None:
    with pytest.raises(Refused, match=words):
        light_run(**more)  # type: ignore[arg-type]


def test_rosters_that_are_not_safe_are_refused() -> None:
    roster = {i: KNOWN[i].public for i in range(5)}
    with pytest.raises(Refused, match="two parties with one key"):
        Light(roster | {1: roster[0]}, 1, 3, 7, b"")
    with pytest.raises(Refused, match="below 0"):
        Light(roster | {-1: KNOWN[9].public}, 1, 3, 7, b"")
    with pytest.raises(Refused, match="another key"):
        LightClient(light_run(), 1, KNOWN[2])
    with pytest.raises(Refused, match="another key"):
        LightClient(light_run(), 50, KNOWN[50])


@pytest.mark.parametrize(("rows", "more", "words"), [
    (np.zeros((5, 3)), {}, "int64"), (np.zeros(5, np.int64), {}, "int64"), (np.zeros((5, 0), np.int64), {}, "int64"),
    (np.full((5, 3), P // 5), {}, "scale the rows down"),
    (np.zeros((5, 3), np.int64), {"ids": [1, 2, 3]}, "3 ids for 5 rows"),
    (np.zeros((5, 3), np.int64), {"ids": [1, 1, 2, 3, 4]}, "5 ids for 5 rows"),
    (np.zeros((5, 3), np.int64), {"drop": {9: "share"}}, "name parties"),
    (np.zeros((5, 3), np.int64), {"drop": {1: "masked"}}, "name parties"),
])  # fmt: skip
def test_rehearsals_that_make_no_sense_are_refused(rows: np.ndarray, more: dict[str, object], words: str) -> None:
    with pytest.raises(Refused, match=words):
        rehearse_light(rows, privacy=1, target=3, **more)  # type: ignore[arg-type]
