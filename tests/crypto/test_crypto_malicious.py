"""A lying server against real parties: every case ends in an abort, or in a sum of at least t honest vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from secagg_cohort import (
    LIKELY,
    MODEL,
    POSSIBLE,
    SESSION,
    Cohort,
    agreed,
    boxes,
    bundle,
    chi_square,
    read,
    signatures,
    survivors,
    with_terms,
)

from atoll.core.wire import Member
from atoll.crypto import shamir
from atoll.crypto.graph import Sparse, parameters
from atoll.crypto.keys import Identity, Pair, Refused, agree, open_sealed, seal
from atoll.crypto.mask import add_mask
from atoll.crypto.secagg import Abort, SecureClient, SecurePlan, SecurePolicy, encode
from atoll.crypto.secagg.client import mask_key, share_key
from atoll.crypto.secagg.messages import (
    Advert,
    Boxes,
    Bundle,
    Opened,
    Signatures,
    advert_statement,
    commit,
    survivors_statement,
)

LOW_ORDER = [
    0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]  # fmt: skip


def refused(cohort: Cohort, step: str, i: int, message: bytes, words: str) -> None:
    """The party aborts, says why, and is dead for the session."""
    client = cohort.clients[i]
    with pytest.raises(Abort, match=words):
        cohort.answer(step, i, message)
    assert client.state == "over"
    for later in ("advertise", "share", "masked", "consistent", "unmask"):
        with pytest.raises(Abort, match="'over' is next"):
            cohort.answer(later, i, message)


def opened(data: bytes) -> dict[int, bytes]:
    return dict(read(Opened, data).shares)


def test_case_1_overlapping_active_and_dead_lists() -> None:
    """There is one list: the dead are the rest of it, and each party gives exactly one share for each."""
    cohort = Cohort(6)
    inbox = cohort.until("unmask", drop={5: "masked"})
    before = {i: msgspec.msgpack.decode(cohort.clients[i].dump())["shares"] for i in range(5)}
    for i in range(5):
        given = opened(cohort.answer("unmask", i, inbox[i]))
        assert sorted(given) == [0, 1, 2, 3, 4, 5]
        for j, share in given.items():
            key_share, seed_share = before[i][j][: shamir.SHARE], before[i][j][shamir.SHARE :]
            assert share == (seed_share if j != 5 else key_share)
    fresh = Cohort(6)
    fresh.until("consistent")
    refused(fresh, "consistent", 0, msgspec.msgpack.encode(["survivors", [0, 1, 2, 3, 4], [4, 5]]), "no Survivors")


def test_case_2_the_same_party_listed_twice() -> None:
    cohort = Cohort(6)
    adverts = read(Bundle, cohort.until("share")[0]).adverts
    refused(cohort, "share", 0, bundle([*adverts, adverts[-1]]), "ascending order")
    cohort = Cohort(6)
    dealt = read(Boxes, cohort.until("masked")[0]).boxes
    refused(cohort, "masked", 0, boxes([*dealt, dealt[-1]]), "ascending order")
    cohort = Cohort(6)
    cohort.until("consistent")
    refused(cohort, "consistent", 0, survivors(0, 1, 2, 3, 4, 4), "ascending order")
    cohort = Cohort(6)
    signed = read(Signatures, cohort.until("unmask")[0]).signatures
    refused(cohort, "unmask", 0, signatures([*signed, signed[-1]]), "ascending order")


def test_case_3_self_listed_dead() -> None:
    cohort = Cohort(6)
    cohort.until("consistent")
    refused(cohort, "consistent", 0, survivors(1, 2, 3, 4, 5), "party 0 is not among the survivors")


def test_case_4_unknown_or_already_dead() -> None:
    cohort = Cohort(6)
    cohort.until("consistent", drop={5: "share"})
    refused(cohort, "consistent", 0, survivors(0, 1, 2, 3, 4, 5), r"survivors \[5\] never dealt")
    refused(cohort, "consistent", 1, survivors(0, 1, 2, 3, 4, 99), r"survivors \[99\] never dealt")


def test_case_4_a_share_or_signature_of_a_stranger() -> None:
    cohort = Cohort(6)
    dealt = read(Boxes, cohort.until("masked", drop={5: "advertise"})[0]).boxes
    refused(cohort, "masked", 0, boxes([*dealt, (5, dealt[-1][1])]), r"shares of \[5\]")
    refused(cohort, "masked", 1, boxes([(1, dealt[0][1]), *dealt[1:]]), r"shares of \[1\]")
    cohort = Cohort(7)
    signed = read(Signatures, cohort.until("unmask", drop={6: "masked"})[0]).signatures
    refused(cohort, "unmask", 0, signatures([*signed, (6, signed[-1][1])]), r"signatures of \[6\]")


def test_case_5_two_requests_with_different_survivors() -> None:
    cohort = Cohort(6)
    cohort.until("consistent")
    cohort.answer("consistent", 0, survivors(0, 1, 2, 3, 4, 5))
    refused(cohort, "consistent", 0, survivors(0, 1, 2, 3, 4), "'unmask' is next")
    cohort = Cohort(6)
    inbox = cohort.until("unmask")
    cohort.answer("unmask", 0, inbox[0])
    refused(cohort, "unmask", 0, inbox[0], "'over' is next")


@pytest.mark.parametrize("step", ["share", "masked", "consistent", "unmask"])
def test_case_5_a_party_set_back_to_an_older_state_answers_nothing_twice(step: str, tmp_path: Path) -> None:
    cohort = Cohort(6, folder=tmp_path)
    inbox = cohort.until(step)
    old = cohort.clients[0].dump()
    cohort.answer(step, 0, inbox[0])
    cohort.clients[0] = SecureClient.load(old, cohort.party(0))
    refused(cohort, step, 0, inbox[0], "already sent once")


def test_case_6_inconsistent_survivors_to_two_halves() -> None:
    cohort = Cohort(6)
    cohort.until("consistent")
    told = {i: (0, 1, 2, 3, 4) if i < 3 else (0, 1, 2, 3, 4, 5) for i in range(5)}
    said = {i: msgspec.msgpack.decode(cohort.answer("consistent", i, survivors(*told[i])))[1] for i in told}
    for i in range(5):
        same = [(j, said[j]) for j in told if j != i and told[j] == told[i]]
        every = [(j, said[j]) for j in told if j != i]
        client = SecureClient.load(cohort.clients[i].dump(), cohort.parties[i])
        with pytest.raises(Abort, match=f"{len(same) + 1} signatures under the survivors: 5 are needed"):
            client.unmask(signatures(same))
        refused(cohort, "unmask", i, signatures(every), "has not signed the survivors")


@pytest.mark.parametrize(
    ("t", "words"),
    [(1, "threshold=1 of 6"), (3, "threshold=3 of 6"), (4, "asks for 5"), (7, "nobody could ever")],
)
def test_case_7_thresholds(t: int, words: str) -> None:
    cohort = Cohort(6, t=t)
    adverts = [read(Advert, cohort.answer("advertise", i, encode(cohort.plan))) for i in range(6)]
    refused(cohort, "share", 0, bundle(adverts), words)


def test_case_7_too_few_parties() -> None:
    cohort = Cohort(6, n_min=7)
    refused(cohort, "share", 0, cohort.until("share")[0], "6 parties: the policy asks for 7")


def test_case_7_too_few_shares_survivors_or_signatures() -> None:
    cohort = Cohort(6)
    dealt = read(Boxes, cohort.until("masked")[0]).boxes
    refused(cohort, "masked", 0, boxes(dealt[:3]), "shares of 4 parties: 5 are needed")
    cohort = Cohort(6)
    cohort.until("consistent")
    refused(cohort, "consistent", 0, survivors(0, 1, 2, 3), "4 survivors: 5 are needed")
    cohort = Cohort(6)
    signed = read(Signatures, cohort.until("unmask")[0]).signatures
    refused(cohort, "unmask", 0, signatures(signed[:3]), "4 signatures under the survivors: 5 are needed")


def test_case_8_a_key_substituted() -> None:
    for field in ("c", "s", "commitment"):
        cohort = Cohort(6)
        adverts = cohort.adverts()
        adverts[2] = msgspec.structs.replace(adverts[2], **{field: Pair.new().public})
        refused(cohort, "share", 0, bundle(adverts), "party 2: its advert is not signed")


def test_case_8_its_own_key_substituted() -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    mine = [*adverts]
    mine[0] = cohort.advert_of(0, s=Pair.new().public)
    refused(cohort, "share", 0, bundle(mine), "its own advert is missing or changed")
    refused(cohort, "share", 1, bundle([adverts[0], *adverts[2:]]), "its own advert is missing or changed")


def test_case_8_one_key_for_two() -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    adverts[2] = cohort.advert_of(2, c=adverts[1].c)
    refused(cohort, "share", 0, bundle(adverts), "one key is advertised twice")


@pytest.mark.parametrize("other", [
    {"t": 4}, {"session": b"another session!"}, {"model": b"o" * 32}, {"context": b"c" * 32},
    {"cohort": (0, 1, 2, 3, 4)},
], ids=str)  # fmt: skip
def test_case_8_signatures_for_other_terms(other: dict[str, object]) -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    adverts[2] = cohort.advert_of(2, plan=with_terms(cohort.plan, **other))
    refused(cohort, "share", 0, bundle(adverts), "party 2: its advert is not signed")


def test_case_8_signatures_missing_or_for_another_plan() -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    another = msgspec.structs.replace(cohort.plan, threshold=6)
    for i, signature in enumerate([bytes(64), cohort.advert_of(2, plan=another).signature]):
        bad = [*adverts]
        bad[2] = msgspec.structs.replace(adverts[2], signature=signature)
        refused(cohort, "share", i, bundle(bad), "party 2: its advert is not signed")
    short = msgspec.msgpack.decode(bundle(adverts))
    short[1][2][5] = b""
    cohort = Cohort(6)
    cohort.until("share")
    refused(cohort, "share", 0, msgspec.msgpack.encode(short), "no Bundle")


def test_case_8_a_signature_of_survivors_of_another_cohort() -> None:
    """The adverts are signed along: views of the cohort that differ cannot be mixed."""
    one = Cohort(6)
    inbox = one.until("unmask")
    two = Cohort(6, identities=one.identities)
    theirs = read(Signatures, two.until("unmask")[0]).signatures
    assert read(Signatures, inbox[0]).signatures != theirs
    refused(one, "unmask", 0, signatures(theirs), "has not signed the survivors")


def test_case_9_replay_of_an_old_round(tmp_path: Path) -> None:
    cohort = Cohort(6, folder=tmp_path)
    inbox = cohort.until("unmask")
    cohort.finish(inbox)
    for number in (0, 2, 3):
        cohort.clients[0] = SecureClient(cohort.party(0))
        cohort.round = number
        refused(cohort, "advertise", 0, encode(with_terms(cohort.plan, t=number)), "round 3 was already spent")
    SecureClient(cohort.party(0)).advertise(encode(with_terms(cohort.plan, t=4)), t=4, model=MODEL)


def test_case_9_old_messages_in_a_new_round() -> None:
    old = Cohort(6, round=3)
    old_boxes = old.until("masked")[0]
    new = Cohort(6, round=4, identities=old.identities)
    new.until("masked")
    refused(new, "masked", 0, old_boxes, "changed on its way")
    new = Cohort(6, round=4, identities=old.identities)
    adverts = new.adverts()
    replayed = [read(Advert, old.sent["advertise"][i]) for i in range(6)]
    refused(new, "share", 0, bundle(replayed), "missing or changed")
    refused(new, "share", 1, bundle([*replayed[:1], *adverts[1:]]), "party 0: its advert is not signed")


@pytest.mark.parametrize("step", ["masked", "consistent", "unmask"])
def test_case_10_restart_at_setup_after_the_masked_vector(step: str) -> None:
    cohort = Cohort(6)
    inbox = cohort.until(step)
    cohort.answer(step, 0, inbox[0])
    if step != "unmask":
        refused(cohort, "advertise", 0, encode(cohort.plan), "asked for 'advertise'")
    cohort.clients[0] = cohort.again(0)
    refused(cohort, "advertise", 0, encode(cohort.plan), "already spent")


def test_case_11_sybils_outside_the_cohort() -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    sybils = Cohort(9, identities={**cohort.identities, **{i: Identity.new() for i in (6, 7, 8)}})
    refused(cohort, "share", 0, bundle([*adverts, *sybils.adverts()[6:]]), "party 6 was not asked for this sum")


def test_case_11_sybils_that_know_the_parties_terms() -> None:
    """A party outside the cohort signs an advert for exactly this plan; it is in everybody's roster."""
    identities = {i: Identity.new() for i in range(7)}
    cohort = Cohort(6, identities=identities)
    adverts = cohort.adverts()
    keys = Pair.new().public, Pair.new().public, bytes(32)
    more = Advert(6, *keys, identities[6].sign(advert_statement(cohort.plan, 6, *keys)))
    refused(cohort, "share", 0, bundle([*adverts, more]), "party 6 was not asked for this sum")


@pytest.mark.parametrize(("other", "words"), [
    ({"cohort": (0, 1, 2, 3, 4)}, "another job, vector or cohort"),
    ({"cohort": (0, 1, 2, 3, 4, 6)}, r"parties \[6\] are not in this party's roster"),
    ({"cohort": (0, 1, 2, 3, 4, 4)}, "names a party twice"), ({"cohort": (1, 0, 2, 3, 4, 5)}, "ascending order"),
    ({"cohort": (0, 1)}, "2 parties are asked: a sum holds 3 or more"), ({"context": b"c" * 32}, "another job"),
    ({"t": 4}, "terms of round 5 in round 4"),
], ids=str)  # fmt: skip
def test_case_17_terms_are_held_against_what_the_party_knows(other: dict[str, object], words: str) -> None:
    cohort = Cohort(6)
    refused(cohort, "advertise", 0, encode(with_terms(cohort.plan, **other)), words)


def test_case_17_a_sum_that_does_not_name_the_party() -> None:
    cohort = Cohort(6)
    terms = cohort.agreed.terms(SESSION, cohort.round, range(1, 6), MODEL)
    plan = msgspec.structs.replace(cohort.plan, terms=terms)
    refused(cohort, "advertise", 0, encode(plan), "the sum is not party 0's")


@pytest.mark.parametrize("differs", ["job", "phase", "protocol", "vector", "name", "key"])
def test_case_17_two_parties_that_agreed_to_different_things(differs: str) -> None:
    """Told of one plan, one of them refuses it; told each of its own, they refuse each other's keys."""
    ours = Cohort(6)
    members = dict(ours.agreed.members)
    members[5] = {"name": Member("somebody", members[5].key), "key": Member(members[5].name, b"k" * 32)}.get(
        differs, members[5]
    )
    other = {"job": {"agreement": b"o" * 32}, "name": {"members": members}, "key": {"members": members}}
    theirs = replace(ours.agreed, **other.get(differs, {differs: "other" if differs == "phase" else b"other"}))
    victim = SecureClient(replace(ours.parties[0], agreed=theirs))
    with pytest.raises(Abort, match="another job, vector or cohort"):
        ours.answer("advertise", 0, encode(ours.plan), victim)
    context = theirs.context(ours.plan.terms.cohort)
    assert context != ours.plan.terms.context
    mine = encode(with_terms(ours.plan, context=context))
    ours.clients[0] = SecureClient(replace(ours.parties[0], agreed=theirs))
    adverts = [ours.answer("advertise", i, mine if i == 0 else encode(ours.plan)) for i in range(6)]
    told = bundle(read(Advert, advert) for advert in adverts)
    refused(ours, "share", 0, told, "party 1: its advert is not signed")
    refused(ours, "share", 1, told, "party 0: its advert is not signed")


def test_case_17_masks_shares_and_commitments_are_made_for_what_was_agreed() -> None:
    """Even where every check was passed, what two contexts give has nothing in common."""
    plan = Cohort(6).plan
    other = with_terms(plan, context=b"c" * 32)
    for derived in (mask_key, share_key):
        assert derived(plan, b"s" * 32, 0, 1) != derived(other, b"s" * 32, 0, 1)
    assert commit(plan, 0, b"s" * 32) != commit(other, 0, b"s" * 32)
    assert survivors_statement(plan, b"", [0]) != survivors_statement(other, b"", [0])
    box = seal(b"k" * 32, b"share", context=plan.digest, i=0, j=1)
    with pytest.raises(Refused, match="changed on its way"):
        open_sealed(b"k" * 32, box, context=other.digest, i=0, j=1)


def test_case_12_two_models_are_refused() -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    other = with_terms(cohort.plan, model=b"another model".ljust(32))
    adverts[3] = cohort.advert_of(3, plan=other)
    refused(cohort, "share", 0, bundle(adverts), "party 3: its advert is not signed")
    cohort = Cohort(6, identities=cohort.identities)
    refused(cohort, "advertise", 0, encode(other), "another model than the one that came")


def test_case_12_masks_made_for_two_models_leave_noise() -> None:
    a, b = Pair.of(bytes(range(32))), Pair.of(bytes(range(1, 33)))
    terms = agreed({i: Identity.new() for i in range(3)}).terms(SESSION, 0, range(3), MODEL)
    plan = SecurePlan(terms, 2, 0, 32, 32, 100_000)
    other = with_terms(plan, model=b"another model".ljust(32))
    total = np.zeros(plan.size, np.uint32)
    add_mask(total, mask_key(plan, agree(a, b.public), 0, 1))
    add_mask(total, mask_key(plan, agree(b, a.public), 1, 0), sign=-1)
    assert not total.any()
    add_mask(total, mask_key(plan, agree(a, b.public), 0, 1))
    add_mask(total, mask_key(other, agree(b, a.public), 1, 0), sign=-1)
    assert chi_square(total) < LIKELY


@pytest.mark.parametrize("point", LOW_ORDER)
def test_case_13_low_order_points(point: int) -> None:
    low = point.to_bytes(32, "little")
    cohort = Cohort(6)
    adverts = cohort.adverts()
    adverts[2] = cohort.advert_of(2, c=low)
    refused(cohort, "share", 0, bundle(adverts), "party 2: a public key of low order")
    cohort = Cohort(6)
    adverts = cohort.adverts()
    adverts[2] = cohort.advert_of(2, s=low)
    cohort.collude(2, adverts[2])
    dealt = [(i, dict(read(Boxes, cohort.answer("share", i, bundle(adverts))).boxes)) for i in range(6)]
    refused(cohort, "masked", 0, boxes((i, to[0]) for i, to in dealt[1:]), "party 2: a public key of low order")


def test_case_13_wrong_sizes() -> None:
    for size in (0, 31, 33):
        cohort = Cohort(6)
        raw = msgspec.msgpack.decode(cohort.until("share")[0])
        raw[1][2][2] = bytes(size)
        refused(cohort, "share", 0, msgspec.msgpack.encode(raw), "no Bundle")


def test_case_14_swapped_ciphertexts() -> None:
    cohort = Cohort(6)
    inbox = cohort.until("masked")
    dealt, theirs = read(Boxes, inbox[0]).boxes, dict(read(Boxes, inbox[1]).boxes)
    swapped = [(1, dealt[1][1]), (2, dealt[0][1]), *dealt[2:]]
    refused(cohort, "masked", 0, boxes(swapped), "sealed by party 1 for party 0 was changed")
    foreign = [(j, theirs.get(j, box)) for j, box in read(Boxes, inbox[2]).boxes]
    refused(cohort, "masked", 2, boxes(foreign), "was changed on its way")
    flipped = [(j, box[:-1] + bytes([box[-1] ^ 1])) for j, box in read(Boxes, inbox[3]).boxes]
    refused(cohort, "masked", 3, boxes(flipped), "was changed on its way")


def test_case_14_a_box_sent_back_to_its_sender() -> None:
    cohort = Cohort(6)
    dealt = read(Boxes, cohort.until("masked")[0]).boxes
    reflected = dict(read(Boxes, cohort.sent["share"][0]).boxes)
    refused(cohort, "masked", 0, boxes((j, reflected[j]) for j, _ in dealt), "was changed on its way")


def test_case_15_a_truncated_or_reordered_cohort() -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    refused(cohort, "share", 0, bundle(adverts[:2]), "2 parties: the policy asks for 3")
    refused(cohort, "share", 1, bundle(adverts[:4]), "threshold=5 of 4: nobody could ever")
    refused(cohort, "share", 2, bundle(adverts[::-1]), "ascending order")
    cohort = Cohort(6)
    cohort.until("consistent")
    refused(cohort, "consistent", 0, survivors(5, 4, 3, 2, 1, 0), "ascending order")


def test_case_16_a_vector_that_arrives_after_the_unmasking_stays_masked() -> None:
    cohort = Cohort(6, size=50_000)
    cohort.rows[5] = 0
    inbox = cohort.until("masked")
    late = cohort.answer("masked", 5, inbox[5])
    for i in range(5):
        cohort.server.take(i, cohort.answer("masked", i, inbox[i]))
    for i, message in cohort.server.turn().items():
        cohort.server.take(i, cohort.answer("consistent", i, message))
    total, alive = cohort.finish(cohort.server.turn())
    assert alive == (0, 1, 2, 3, 4)
    assert (total == cohort.total(alive)).all()
    # The server now knows party 5's mask key, and so all pair masks on its vector; its own mask is still there.
    server = cohort.server
    pair = Pair.of(server._secret(5, "mask key"))
    y = np.frombuffer(msgspec.msgpack.decode(late)[1], np.uint32).copy()
    for j in alive:
        add_mask(y, mask_key(cohort.plan, agree(pair, server._adverts[j].s), 5, j), sign=1 if j < 5 else -1)
    assert y.any()
    assert chi_square(y) < POSSIBLE


@pytest.mark.parametrize(("change", "words"), [
    ({"width": 64, "bits": 64}, "width 64"), ({"size": 6}, "size 6"), ({"bits": 33}, "33 bits: the policy has 32"),
    ({"bits": 31}, "31 bits: the policy has 32"), ({"neighbours": 2}, "is sparse"), ({"width": 33}, "width 33"),
])  # fmt: skip
def test_plans_against_the_policy(change: dict[str, object], words: str) -> None:
    cohort = Cohort(6)
    refused(cohort, "advertise", 0, encode(msgspec.structs.replace(cohort.plan, **change)), words)


def test_rounds_beyond_the_policy() -> None:
    cohort = Cohort(6)
    cohort = Cohort(6, identities=cohort.identities, agreed=replace(cohort.agreed, rounds=3))
    refused(cohort, "advertise", 0, encode(cohort.plan), "round 4: the policy ends after 3")


def test_noise_in_shares_wants_enough_to_the_end() -> None:
    """Survivors are counted before anything is signed, in the complete graph and in a sparse one."""
    cohort = Cohort(6)
    cohort = Cohort(6, identities=cohort.identities, agreed=replace(cohort.agreed, job_min_cohort=6))
    cohort.until("consistent", drop={5: "masked"})
    refused(cohort, "consistent", 0, survivors(0, 1, 2, 3, 4), "a sum of 5 vectors: the job has 6 or none")
    sparse = Sparse(0.05, 0.1)
    k, t = parameters(60, sparse)
    policy = SecurePolicy(n_min=3, size=1, sparse=sparse)
    cohort = Cohort(60, t=t, size=1, neighbours=k, policy=policy)
    cohort = replace(cohort, agreed=replace(cohort.agreed, job_min_cohort=59))
    cohort.until("consistent", drop={7: "masked"})
    cohort.answer("consistent", 0, survivors(*(i for i in range(60) if i != 7)))
    refused(
        cohort,
        "consistent",
        1,
        survivors(*(i for i in range(60) if i not in (7, 8))),
        "a sum of 58 vectors: the job has 59",
    )


def test_a_policy_counts_survivors_and_not_who_was_asked() -> None:
    cohort = Cohort(6)
    cohort = Cohort(6, identities=cohort.identities, agreed=replace(cohort.agreed, min_cohort=6))
    cohort.until("consistent", drop={5: "masked"})
    refused(cohort, "consistent", 0, survivors(0, 1, 2, 3, 4), "a sum of 5 vectors: 6 are the least")


def test_a_policy_of_whole_batches_opens_no_part_of_one() -> None:
    cohort = Cohort(6)
    cohort = Cohort(6, identities=cohort.identities, agreed=replace(cohort.agreed, batches=((0, 3), (1, 4), (2, 5))))
    cohort.until("consistent", drop={5: "masked"})
    words = r"some of the batch \(2, 5\) and not all: whole_batches forbids it"
    refused(cohort, "consistent", 0, survivors(0, 1, 2, 3, 4), words)


def test_vectors_must_fit_the_plan() -> None:
    for wrong in (np.zeros(4, np.uint32), np.zeros(5, np.uint64), np.zeros(5, np.float32), np.zeros((5, 1), np.uint32)):
        cohort = Cohort(6)
        inbox = cohort.until("masked")
        with pytest.raises(Abort, match="for the plan"):
            cohort.clients[0].masked(inbox[0], wrong)
        assert cohort.clients[0].state == "over"


@pytest.mark.parametrize("step", ["advertise", "share", "masked", "consistent", "unmask"])
def test_messages_too_long_or_of_another_kind(step: str) -> None:
    cohort = Cohort(6)
    inbox = cohort.until(step)
    refused(cohort, step, 0, inbox[0] + bytes(10_000), "has at most")
    refused(cohort, step, 1, b"", "the bytes are no")
    refused(cohort, step, 2, survivors() if step != "consistent" else encode(cohort.plan), "the bytes are no")
    refused(cohort, step, 3, inbox[3] + b"\x00", "the bytes are no")


def test_messages_out_of_turn() -> None:
    cohort = Cohort(6)
    refused(cohort, "masked", 0, b"", "'advertise' is next")
    inbox = cohort.until("share", drop={0: "advertise"})
    refused(cohort, "unmask", 1, inbox[1], "'share' is next")


def test_a_damaged_record_is_no_licence(tmp_path: Path) -> None:
    cohort = Cohort(6, folder=tmp_path)
    (tmp_path / "0" / f"{SESSION.hex()}.spent").write_text("")
    refused(cohort, "advertise", 0, encode(cohort.plan), "record of spent rounds is damaged")
