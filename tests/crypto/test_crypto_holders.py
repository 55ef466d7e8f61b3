"""Encrypted sums: exact, one sum a key, and every doubt of a party or a holder ends its round in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from holders_cast import KNOWN, SESSION, SIZE, Cast, Served

from atoll.core.wire import Member
from atoll.crypto import holders
from atoll.crypto.keys import Identity
from atoll.crypto.paillier import PublicKey, keypair
from atoll.crypto.secagg import Abort

ALL = (0, 1, 2, 3)
replace = msgspec.structs.replace


@pytest.fixture
def cast(tmp_path: Path) -> Cast:
    return Cast(tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> Cast:
    return Cast(tmp_path, key_holders=2)


# --- what it is for


@pytest.mark.parametrize("how", [{}, {"key_holders": 2}, {"key_holders": 4}, {"scheme": "ckks"}], ids=str)
def test_the_sum_is_exact_round_after_round(tmp_path: Path, how: dict[str, Any]) -> None:
    if how.get("scheme") == "ckks":
        pytest.importorskip("tenseal")
    cast = Cast(tmp_path, **how)
    served = Served(cast)
    for t, cohort in enumerate([ALL, (1, 2, 3)]):  # a holder need not be in the cohort
        vector, replies = served.round(t, cohort)
        assert np.array_equal(vector, np.add.reduce(cast.vectors[list(cohort)], 0, dtype=np.uint32))
        assert vector.dtype == np.uint32
        assert replies.parties.tolist() == list(cohort)
        assert replies.facts["seconds"] == (2.0 if how.get("key_holders") else 1.5)
    assert not served.declined


def test_enough_answers_are_enough(cast: Cast) -> None:
    vector, replies = Served(cast).round(0, enough=1)  # three, whatever else is said
    assert replies.parties.tolist() == [0, 1, 2]
    assert replies.facts["lost"] == 1
    assert np.array_equal(vector, np.add.reduce(cast.vectors[:3], 0, dtype=np.uint32))


@pytest.mark.parametrize("step", ["key", "open"])
def test_without_its_holder_a_round_opens_nothing_and_the_next_is_fine(cast: Cast, step: str) -> None:
    served = Served(cast)
    served.absent = {step: {0}}
    vector, replies = served.round(0)
    assert not vector.any()
    assert not len(replies)
    assert "party 0, who holds the key, is away or declined: nothing was opened" in replies.facts["aborted"]
    assert cast.trained == (4 if step == "open" else 0)  # without a key nobody works
    served.absent = {}
    assert np.array_equal(served.round(1)[0], np.add.reduce(cast.vectors, 0, dtype=np.uint32))


def test_a_restarted_holder_makes_another_key(cast: Cast) -> None:
    served = Served(cast)
    served.round(0)
    cast.parties[0] = cast.sit(0)
    assert len(served.round(1)[1]) == 4


def test_too_few_vectors_are_not_opened(cast: Cast) -> None:
    served = Served(cast)
    served.absent = {"seal": {1, 2}}
    assert "2 vectors came, 3 are needed" in served.round(0)[1].facts["aborted"]
    assert "2 parties are asked: a sum holds 3 or more" in served.round(1, (0, 1))[1].facts["aborted"]


def test_broken_ciphertexts_are_left_out_of_the_sum(cast: Cast) -> None:
    served = Served(cast)
    served.spoil = {("seal", 2): lambda answer: answer[:-1]}
    vector, replies = served.round(0)
    assert replies.parties.tolist() == [0, 1, 3]
    assert np.array_equal(vector, np.add.reduce(cast.vectors[[0, 1, 3]], 0, dtype=np.uint32))
    (note,) = served.notes
    assert note.facts["number"] == 2
    assert "bytes for" in note.facts["why"]


@pytest.mark.parametrize("how", [{}, {"key_holders": 2}], ids=str)
@pytest.mark.parametrize("spoilt", [b"", b"\x01", b"\xff"], ids=["none", "one", "large"])
def test_a_holder_that_answers_nonsense_opens_nothing(tmp_path: Path, how: dict[str, Any], spoilt: bytes) -> None:
    served = Served(Cast(tmp_path, **how))
    served.spoil = {("open", 0): lambda answer: spoilt * len(answer)}
    assert "nothing was opened" in served.round(0)[1].facts["aborted"]


@pytest.mark.parametrize("how", [{}, {"key_holders": 2}], ids=str)
def test_an_opened_sum_of_another_length_is_none(tmp_path: Path, how: dict[str, Any]) -> None:
    served = Served(Cast(tmp_path, **how))
    served.spoil = {("open", 0): lambda answer: answer[:-1]}
    assert "bytes for 2 " in served.round(0)[1].facts["aborted"]


def test_a_key_for_another_round_is_not_passed_on(cast: Cast) -> None:
    old = holders.encode(cast.dealt(3))
    served = Served(cast)
    served.spoil = {("key", 0): lambda _: old}
    assert "made a key for another round" in served.round(4)[1].facts["aborted"]
    assert not cast.trained


# --- what a party refuses before it trains


def refused(cast: Cast, who: int, message: bytes, words: str, **more: Any) -> None:
    with pytest.raises(Abort, match=words):
        cast.ask(who, "seal", message, **more)
    assert not cast.trained


def test_only_the_holders_own_signature_makes_a_key(cast: Cast) -> None:
    key = cast.dealt().key
    cast.ask(1, "seal", holders.encode(key))
    cast.trained = 0
    server = Identity.new()
    statement = key.statement(cast.rules.holders)
    others = keypair().public.to_bytes()
    for signature, public in (
        (server.sign(statement), key.public), (KNOWN[1].sign(statement), key.public), (bytes(64), key.public),
        (key.signature, others), (cast.dealt(1).key.signature, key.public),
    ):  # fmt: skip
        told = replace(key, signature=signature, public=public)
        refused(cast, 1, holders.encode(told), "party 0, who holds the key, did not sign this one")
    for other in ({"session": bytes([1]) * 16}, {"cohort": (0, 1, 2)}):
        told = replace(key, terms=cast.terms(**other))
        refused(cast, 1, holders.encode(told), "did not sign this one for this round")


def test_a_key_is_signed_for_the_holders_that_the_job_names(tmp_path: Path) -> None:
    """With two holders a key that its maker kept for itself is none."""
    two = Cast(tmp_path, key_holders=2)
    key = two.dealt().key
    alone = KNOWN[0].sign(key.statement((0,)))
    refused(two, 1, holders.encode(replace(key, signature=alone)), "did not sign")


@pytest.mark.parametrize(
    ("public", "words"),
    [
        (bytes([255]) * 128, "a public key of 1024 bits: the job asks for 2048"),
        (bytes([255]) * 384, "a public key of 3072 bits: the job asks for 2048"),
        (bytes([0]) + bytes([255]) * 255, "a public key of 2040 bits"),
        (bytes([255]) * 255 + bytes([254]), "is even"),
        (b"", "a public key of 0 bits"),
        (bytes([255]) * 256, "small factor"),
    ],
)
def test_a_key_that_protects_nothing_is_refused_whoever_signed_it(cast: Cast, public: bytes, words: str) -> None:
    refused(cast, 1, holders.encode(cast.key(public=public)), words)


def test_terms_are_held_against_what_the_party_knows(cast: Cast) -> None:
    for other, words in (
        ({"context": bytes(32)}, "another job, vector or cohort"),
        ({"cohort": (0, 1)}, "2 parties are asked: a sum holds 3 or more"),
        ({"cohort": (0, 1, 1, 1)}, "names a party twice"),
        ({"cohort": (0, 1, 3, 2)}, "not in ascending order"),
        ({"cohort": (0, 1, 2, 7)}, r"parties \[7\] are not in this party's roster"),
        ({"cohort": (0, 2, 3)}, "not named in it"),
        ({"t": 1}, "terms of round 2 in round 1"),
        ({"model": bytes(32)}, "another model than the one that came"),
    ):
        refused(cast, 1, holders.encode(cast.key(**other)), words)
        if "model" not in other and other.get("cohort") != (0, 2, 3):
            with pytest.raises(Abort, match=words):
                cast.ask(0, "key", holders.encode(holders.KeyRequest(cast.terms(**other), [])))


def test_what_differs_in_the_job_makes_another_sum(tmp_path: Path) -> None:
    for name, how in (
        ("job", {"job": bytes(32)}), ("bits", {"bits": 3072}), ("holders", {"key_holders": 2}), ("floor", {"floor": 4}),
        ("none", {}),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        other = Cast(tmp_path / name, **how)
        (tmp_path / f"mine-{name}").mkdir()
        mine = Cast(tmp_path / f"mine-{name}")
        if name == "none":
            assert other.terms() == mine.terms()
        else:
            refused(mine, 1, holders.encode(other.key()), "another job, vector or cohort")


@pytest.mark.parametrize("other", [Member("somebody", KNOWN[0].public), Member("party 0", KNOWN[7].public)])
def test_a_holder_that_parties_know_by_another_name_or_key(tmp_path: Path, other: Member) -> None:
    """The holder is not asked for a vector, and is bound all the same."""
    cast = Cast(tmp_path)
    key = holders.encode(cast.key(cohort=(1, 2, 3)))
    cast.ask(1, "seal", holders.encode(cast.dealt(cohort=(1, 2, 3)).key))
    cast.trained = 0
    cast.members = {**cast.members, 0: other}
    refused(cast, 1, key, "another job, vector or cohort")


def test_rounds_end_where_the_policy_says(cast: Cast) -> None:
    with pytest.raises(Abort, match="round 10: the policy ends after 9"):
        cast.ask(1, "seal", holders.encode(cast.key(t=9)), 9)


def test_a_policy_asks_for_more(tmp_path: Path) -> None:
    for k, limits in enumerate(({"least": 4}, {"floor": 4})):
        (tmp_path / f"{k}").mkdir()
        cast = Cast(tmp_path / f"{k}", **limits)
        refused(cast, 1, holders.encode(cast.key(cohort=(0, 1, 2))), "3 parties are asked: a sum holds 4 or more")
        total = cast.total(cast.dealt().key, (0, 1, 2))
        with pytest.raises(Abort, match="a sum of 3 vectors: 4 are the least"):
            cast.open(0, total)


def test_a_message_is_read_only_if_it_is_one(cast: Cast) -> None:
    good = holders.encode(cast.key())
    refused(cast, 1, good[:-1], "the bytes are no SignedKey")
    refused(cast, 1, holders.encode(cast.terms()), "the bytes are no SignedKey")
    refused(cast, 1, good + bytes(10_000), "a message of .* bytes: SignedKey has at most")
    refused(cast, 1, b"", "the bytes are no SignedKey")


def test_numbers_that_do_not_fit_stay_here(cast: Cast) -> None:
    key = cast.dealt().key
    cast.vectors[1, 0] = 2**20
    with pytest.raises(Abort, match="bits hold"):
        cast.ask(1, "seal", holders.encode(key))
    cast.vectors = cast.vectors[:, :-1]
    with pytest.raises(Abort, match=f"a vector of {SIZE - 1} numbers: the job has {SIZE}"):
        cast.ask(2, "seal", holders.encode(key))


def test_two_encryptions_of_one_vector_differ(cast: Cast) -> None:
    key = holders.encode(cast.dealt().key)
    assert cast.ask(1, "seal", key) != cast.ask(1, "seal", key)


# --- what a holder refuses


def test_who_holds_no_key_makes_and_opens_none(two: Cast) -> None:
    ask = holders.encode(holders.KeyRequest(two.terms(), []))
    for who, step in ((1, "key"), (2, "key"), (0, "meet"), (2, "meet"), (2, "open")):
        with pytest.raises(Abort, match=f"asked for '{step}', and the key is kept by party 0, party 1"):
            two.ask(who, step, ask)


def test_a_holder_opens_one_sum_a_round(cast: Cast) -> None:
    total = cast.total(cast.dealt().key)
    less = cast.total(total.key, (0, 1, 2))
    cast.open(0, total)
    for again in (total, less):
        with pytest.raises(Abort, match="no key of this round"):
            cast.open(0, again)
    ask = holders.encode(holders.KeyRequest(cast.terms(), []))
    with pytest.raises(Abort, match="round 1: its sum, or a later one, was already opened once"):
        cast.ask(0, "key", ask)
    cast.parties[0] = cast.sit(0)  # started again
    with pytest.raises(Abort, match="no key of this round"):
        cast.open(0, less)
    with pytest.raises(Abort, match="already opened once"):
        cast.ask(0, "key", ask)
    cast.open(0, cast.total(cast.dealt(1).key), 1)
    with pytest.raises(Abort, match="already opened once"):
        cast.ask(0, "key", ask)


def test_the_other_holders_open_one_sum_a_round_too(two: Cast) -> None:
    dealt = two.dealt()
    total = replace(two.total(dealt.key), box=dict(dealt.boxes)[1])
    two.open(1, total)
    with pytest.raises(Abort, match="no key of this round"):
        two.open(1, total)
    two.parties[1] = two.sit(1)
    with pytest.raises(Abort, match="already opened once"):
        two.ask(1, "meet", holders.encode(two.terms()))


def test_the_mark_is_on_disk_before_the_sum_exists(cast: Cast) -> None:
    """What goes wrong while opening, a crash too, costs the round."""
    total = cast.total(cast.dealt().key)
    with pytest.raises(Abort):
        cast.open(0, replace(total, total=total.total[:-1]))
    cast.parties[0] = cast.sit(0)
    with pytest.raises(Abort, match="already opened once"):
        cast.dealt()
    assert (cast.folder / "0" / f"{SESSION.hex()}.spent").is_file()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"among": [0, 1]}, "a sum of 2 vectors: 3 are the least"),
        ({"among": [0, 1, 1, 1]}, "the sum names a party twice"),
        ({"among": [0, 1, 2, 3, 7]}, "parties that were not asked"),
        ({"total": b""}, "0 bytes for"),
        ({"total": bytes(1024)}, "not between 0 and n²"),
        ({"total": bytes([255]) * 1024}, "not between 0 and n²"),
        ({"total": bytes(1023)}, "1023 bytes for"),
        ({"total": bytes(100_000)}, "a message of .* bytes: SumToOpen has at most"),
    ],
    ids=str,
)
def test_what_is_no_sum_stays_closed(cast: Cast, change: dict[str, Any], words: str) -> None:
    total = cast.total(cast.dealt().key)
    assert len(total.total) == 1024
    with pytest.raises(Abort, match=words):
        cast.open(0, replace(total, **change))


@pytest.mark.parametrize(("over", "words"), [(0, "a slot above any sum"), (1, "longer than its slots")])
def test_a_plaintext_that_no_packed_vectors_add_up_to_stays_closed(cast: Cast, over: int, words: str) -> None:
    key = cast.dealt().key
    public = PublicKey.from_bytes(key.public)
    plain = public.n - 1 if over else 1 << 2000
    made = public.ciphertexts_to_bytes(public.encrypt_many([plain, plain]))
    with pytest.raises(Abort, match=words):
        cast.open(0, holders.SumToOpen(key, [0, 1, 2], made))


def test_a_sum_of_more_vectors_than_it_says_stays_closed(cast: Cast) -> None:
    cast.vectors[:] = np.uint32(2**15 - 1)
    total = cast.total(cast.dealt().key)
    with pytest.raises(Abort, match="above any sum of 3 vectors"):
        cast.open(0, replace(total, among=[0, 1, 2]))


def test_a_sum_is_opened_under_the_key_of_its_round(cast: Cast) -> None:
    old = cast.total(cast.dealt(0).key)
    new = cast.dealt(1).key
    with pytest.raises(Abort, match="terms of round 1 in round 2"):
        cast.open(0, old, 1)
    new = cast.dealt(1).key
    with pytest.raises(Abort, match="under another key than the one of this round"):
        cast.open(0, replace(old, key=cast.key(t=1, model=new.terms.model)), 1)


# --- a key that is shared


def test_shares_are_dealt_to_those_who_asked(two: Cast) -> None:
    terms = two.terms()
    advert = two.ask(1, "meet", holders.encode(terms))
    stranger = advert[:32] + KNOWN[2].sign(holders.advert_statement(terms, 1, advert[:32]))
    old = two.ask(1, "meet", holders.encode(two.terms(1)), 1)
    other = two.terms(context=bytes(32))
    another = advert[:32] + KNOWN[1].sign(holders.advert_statement(other, 1, advert[:32]))
    for adverts, words in (
        ([], "not all other holders"), ([(2, advert)], "not all other holders"),
        ([(1, advert), (1, advert)], "not all other holders"),
        ([(1, stranger)], "party 1 did not sign the key"), ([(1, old)], "party 1 did not sign the key"),
        ([(1, another)], "party 1 did not sign the key"),
        ([(1, bytes(32) + advert[32:])], "did not sign"), ([(1, advert[:-1])], "the bytes are no KeyRequest"),
    ):  # fmt: skip
        with pytest.raises(Abort, match=words):
            two.ask(0, "key", holders.encode(holders.KeyRequest(terms, adverts)))


@pytest.mark.parametrize("box", ["changed", "short", "another round's"])
def test_a_box_that_is_not_this_rounds_opens_nothing(two: Cast, box: str) -> None:
    earlier = dict(two.dealt(0).boxes)[1]
    dealt = two.dealt(1)
    mine = dict(dealt.boxes)[1]
    told = {"changed": mine[:-1] + bytes([mine[-1] ^ 1]), "short": mine[:9], "another round's": earlier}[box]
    with pytest.raises(Abort, match=r"was changed on its way|a sealed text of 9 bytes"):
        two.open(1, replace(two.total(dealt.key), box=told), 1)


def test_a_share_of_another_key_is_refused(two: Cast) -> None:
    """A dealer that signs one key and deals another."""
    terms = two.terms()
    advert = two.ask(1, "meet", holders.encode(terms))
    dealt = two.rules.dealt(two.ask(0, "key", holders.encode(holders.KeyRequest(terms, [(1, advert)]))), terms)
    key = replace(dealt.key, public=keypair().public.to_bytes())
    key = replace(key, signature=KNOWN[0].sign(key.statement(two.rules.holders)))
    with pytest.raises(Abort, match="a share of another key than the one that was signed"):
        two.open(1, replace(two.total(key), box=dict(dealt.boxes)[1]))


def test_a_sum_under_a_key_that_nobody_signed_is_not_opened_by_the_others(two: Cast) -> None:
    dealt = two.dealt()
    key = replace(dealt.key, signature=bytes(64))
    with pytest.raises(Abort, match="did not sign"):
        two.open(1, replace(two.total(dealt.key), key=key, box=dict(dealt.boxes)[1]))
    for other, words in (
        ({"cohort": (0, 1, 2)}, "under another key than the one of this round"),
        ({}, "a key that was not dealt"),
    ):
        two.dealt(1)
        with pytest.raises(Abort, match=words):
            two.open(1, replace(two.total(dealt.key, (0, 1, 2)), key=two.key(t=1, **other)), 1)


def test_one_share_alone_tells_nothing_and_both_are_needed(two: Cast) -> None:
    dealt = two.dealt()
    total = two.total(dealt.key)
    first, second = two.open(0, total), two.open(1, replace(total, box=dict(dealt.boxes)[1]))
    sealer = two.rules.sealer(dealt.key)
    summed = two.vectors.view(np.int32).sum(0)
    assert np.array_equal(sealer.read([first, second], 4), summed)
    for parts in ([first], [second], [first, first]):
        with pytest.raises(ValueError, match="do not fit together"):
            sealer.read(parts, 4)


# --- CKKS


def test_ckks_bytes_of_a_peer_are_held_against_the_job(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    from atoll.crypto.ckks import Ckks

    cast = Cast(tmp_path, scheme="ckks")
    key = cast.dealt().key
    total = cast.total(key)
    with Ckks.new() as owner:
        refused(cast, 1, holders.encode(cast.key(public=owner.secret())), "with its secret half")
    refused(cast, 1, holders.encode(cast.key(public=bytes(1000))), "CKKS key refused")
    sealer = cast.rules.sealer(key)
    with pytest.raises(ValueError, match="no list of CKKS ciphertexts"):
        sealer.add(b"\xff")
    with pytest.raises(ValueError, match="2 CKKS ciphertexts: a vector takes 1"):
        sealer.add(msgspec.msgpack.encode([b"a", b"b"]))
    with pytest.raises(ValueError, match="CKKS add refused"):
        sealer.add(msgspec.msgpack.encode([b"a"]))
    with pytest.raises(ValueError, match="bytes for 100 sums: they take 800"):
        sealer.read([bytes(9)], 4)
    with pytest.raises(ValueError, match=f"a vector of 3 numbers: the job has {SIZE}"):
        sealer.encrypt(np.zeros(3, np.int64))
    huge = sealer.encrypt(np.full(SIZE, 2**20))
    sealer.close()
    with pytest.raises(Abort, match="above any sum of 4 vectors"):
        cast.open(0, replace(total, total=huge))
