"""What keys, masks, shares, graphs, policies and the honest server refuse, one test for each sentence."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from secagg_cohort import MODEL, SESSION, Cohort, agreed, boxes, read, survivors

from atoll.crypto import graph, shamir
from atoll.crypto.keys import Identity, Pair, Refused, agree, open_sealed, seal
from atoll.crypto.lists import SignedLists
from atoll.crypto.mask import add_mask
from atoll.crypto.rehearse import rehearse_secure
from atoll.crypto.secagg import Abort, Participant, SecurePlan, SecurePolicy, SpentHere, encode
from atoll.crypto.secagg.messages import Advert, Boxes, Masked, Opened, adverts_digest

ROWS = np.zeros((3, 2), np.uint32)


def policy(**fields: object) -> SecurePolicy:
    return SecurePolicy(**{"n_min": 3, "size": 1} | fields)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Identity.of(bytes(31)), "an identity of 31 bytes"),
    (lambda: Pair.of(bytes(33)), "a pair of 33 bytes"),
    (lambda: agree(Pair.new(), bytes(31)), "a public key of 31 bytes"),
    (lambda: agree(Pair.new(), bytes(32)), "low order"),
    (lambda: open_sealed(bytes(32), bytes(27), context=b"", i=0, j=1), "a sealed text of 27 bytes"),
    (lambda: add_mask(np.zeros(3, np.int32), bytes(32)), "a int32 array"),
    (lambda: add_mask(np.zeros(3, np.float32), bytes(32)), "a float32 array"),
    (lambda: add_mask(np.zeros((3, 1), np.uint32), bytes(32)), "unsigned rows"),
    (lambda: add_mask(np.zeros(3, np.uint32), bytes(16)), "a mask key of 16 bytes"),
    (lambda: shamir.split(bytes(31), [1, 2], 2), "a secret of 31 bytes"),
    (lambda: shamir.split(bytes(32), [1, 2], 3), "t=3 of 2"),
    (lambda: shamir.split(bytes(32), [1, 2], 0), "t=0 of 2"),
    (lambda: shamir.split(bytes(32), [1, 2, 2], 2), "two shares at one x"),
    (lambda: shamir.split(bytes(32), [0, 1, 2], 2), "x=0"),
    (lambda: shamir.split_number(17, [1, 2, 3], 2, 17), "a secret beyond the prime"),
    (lambda: shamir.combine({1: bytes(33)}, 2), "1 shares: 2 are needed"),
    (lambda: shamir.combine([(1, bytes(33)), (1, bytes(33))], 1), "two shares at one x"),
    (lambda: shamir.combine({1: bytes(33), 0: bytes(33)}, 2), "x=0"),
    (lambda: shamir.combine({1: bytes(33), 2: bytes(32)}, 2), "not 33 bytes"),
    (lambda: shamir.combine({1: bytes(33), 2: b"\xff" * 33}, 2), "a share beyond the prime"),
    (lambda: shamir.combine({1: (shamir.PRIME - 1).to_bytes(33, "big")}, 1), "do not belong together"),
    (lambda: graph.Sparse(server="honest"), "curious or semi-malicious"),  # type: ignore[arg-type]
    (lambda: graph.Sparse(adversarial=1.0), "adversarial=1.0: a fraction"),
    (lambda: graph.Sparse(dropout=-0.1), "dropout=-0.1: a fraction"),
    (lambda: graph.Sparse(0.3, 0.4), "too few honest"),
    (lambda: graph.around(0, [0, 1, 2, 3], 3), "k=3 of 4"),
    (lambda: graph.parameters(5, graph.Sparse()), "use the complete graph"),
    (lambda: policy(n_min=2), "n_min=2"),
    (lambda: policy(width=16), "width=16"),
    (lambda: policy(size=0), "size=0"),
    (lambda: policy(bits=0), "bits=0: from 1 to the 32"),
    (lambda: policy(bits=33), "bits=33"),
    (lambda: policy(fraction=Fraction(1, 2)), "fraction=1/2"),
    (lambda: policy(fraction=Fraction(1)), "fraction=1:"),
    (lambda: rehearse_secure(ROWS, ids=[1, 1, 2]), "each row has its own"),
    (lambda: rehearse_secure(ROWS, drop={0: "lunch"}), "messages advertise, share"),
])  # fmt: skip
def test_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_a_record_counts_upwards_only() -> None:
    spent = SpentHere()
    spent.spend(SESSION, 4, 2)
    spent.spend(SESSION, 4, 3)
    for number, step in [(4, 3), (4, 2), (3, 4)]:
        with pytest.raises(Abort, match="already sent once"):
            spent.spend(SESSION, number, step)
    spent.spend(SESSION, 5, 0)
    spent.spend(b"another", 0, 0)


def test_sealed_texts_are_for_one_direction() -> None:
    box = seal(bytes(32), b"text", context=b"c", i=2, j=3)
    assert open_sealed(bytes(32), box, context=b"c", i=2, j=3) == b"text"
    for change in ({"context": b"d"}, {"context": b""}, {"i": 3, "j": 2}, {"j": 4}):
        with pytest.raises(Refused, match="changed on its way"):
            open_sealed(bytes(32), box, **{"context": b"c", "i": 2, "j": 3} | change)


def server_refuses(cohort: Cohort, sender: int, message: bytes, words: str) -> None:
    with pytest.raises(Refused, match=words):
        cohort.server.take(sender, message)


def test_the_server_refuses_a_message_and_goes_on() -> None:
    cohort = Cohort(4)
    adverts = {i: cohort.answer("advertise", i, encode(cohort.plan)) for i in range(4)}
    server_refuses(cohort, 0, adverts[1], "party 0: its advert is not signed")
    server_refuses(cohort, 7, adverts[1], "party 7 has no message")
    forged = msgspec.structs.replace(read(Advert, adverts[0]), c=bytes(32))
    server_refuses(cohort, 0, encode(forged), "party 0: its advert is not signed")
    with pytest.raises(Refused, match="finish after the last"):
        cohort.server.finish()
    for i in range(4):
        cohort.server.take(i, adverts[i])
    server_refuses(cohort, 0, adverts[0], "party 0 has no message")
    inbox = cohort.server.turn()

    dealt = {i: cohort.answer("share", i, inbox[i]) for i in range(4)}
    server_refuses(cohort, 0, boxes(read(Boxes, dealt[0]).boxes[:-1]), "dealt to others")
    for i in range(4):
        cohort.server.take(i, dealt[i])
    inbox = cohort.server.turn()

    masked = {i: cohort.answer("masked", i, inbox[i]) for i in range(4)}
    server_refuses(cohort, 0, encode(Masked(bytes(16))), "a vector of 16 bytes, the plan has 20")
    server_refuses(cohort, 0, encode(Masked(bytes(200))), "has at most")
    for i in range(4):
        cohort.server.take(i, masked[i])
    inbox = cohort.server.turn()

    other = cohort.answer("consistent", 3, survivors(1, 2, 3))
    server_refuses(cohort, 3, other, "party 3: it signed other survivors")
    for i in range(3):
        cohort.server.take(i, cohort.answer("consistent", i, inbox[i]))
    inbox = cohort.server.turn()

    opened = cohort.answer("unmask", 0, inbox[0])
    server_refuses(cohort, 0, encode(Opened(read(Opened, opened).shares[1:])), "shares of others")
    cohort.server.take(0, opened)
    for i in (1, 2):
        cohort.server.take(i, cohort.answer("unmask", i, inbox[i]))
    total, alive = cohort.server.finish(), cohort.server.survivors
    assert alive == (0, 1, 2, 3)
    assert (total == cohort.total(alive)).all()


def test_the_server_asks_for_no_sum_of_too_few() -> None:
    cohort = Cohort(6)
    cohort.server.least = 6
    with pytest.raises(Abort, match="5 parties sent 'masked', 6 are needed"):
        cohort.until("consistent", drop={0: "masked"})


def test_too_few_messages_end_the_round() -> None:
    cohort = Cohort(4)
    with pytest.raises(Abort, match="2 parties sent 'share', 3 are needed"):
        cohort.until("masked", drop={0: "advertise", 1: "share"})
    cohort = Cohort(4)
    inbox = cohort.until("unmask")
    for i in (0, 1):
        cohort.server.take(i, cohort.answer("unmask", i, inbox[i]))
    with pytest.raises(Abort, match="2 shares of party 0's seed, 3 are needed"):
        cohort.server.finish()


@pytest.mark.parametrize(("liar", "about", "drop", "what"), [(1, 2, {}, "seed"), (1, 3, {3: "masked"}, "mask key")])
@pytest.mark.parametrize("lie", [b"\x00" * 32 + b"\x07", b"\xff" * 33])
def test_wrong_shares_are_found(liar: int, about: int, drop: dict[int, str], what: str, lie: bytes) -> None:
    cohort = Cohort(4)
    inbox = cohort.until("unmask", drop=drop)
    for i, message in inbox.items():
        answer = cohort.answer("unmask", i, message)
        if i == liar:
            answer = encode(Opened([(j, lie if j == about else s) for j, s in read(Opened, answer).shares]))
        cohort.server.take(i, answer)
    with pytest.raises(Abort, match=rf"party {about}'s {what} is not what it advertised.*\[0, 1, 2\] lied"):
        cohort.server.finish()


@pytest.mark.parametrize(("neighbours", "t", "words"), [
    (7, 6, "an even number"), (60, 40, "an even number"), (2, 2, "the policy needs more"), (30, 5, "asks for"),
    (30, 31, "nobody"),
])  # fmt: skip
def test_sparse_plans_against_the_policy(neighbours: int, t: int, words: str) -> None:
    policy = SecurePolicy(n_min=3, size=5, sparse=graph.Sparse(0.05, 0.1))
    terms = agreed({i: Identity.new() for i in range(60)}).terms(SESSION, 0, range(60), MODEL)
    plan = SecurePlan(terms, t, neighbours, 32, 32, 5)
    with pytest.raises(Abort, match=words):
        policy.check_cohort(plan, 60)


def test_parties_know_themselves() -> None:
    identity, other = Identity.new(), Identity.new()
    for roster in ({0: other}, {1: identity}):
        with pytest.raises(ValueError, match="another key for it"):
            Participant(0, identity, agreed(roster), policy(), SpentHere(), SignedLists())
    with pytest.raises(Abort, match="one key twice"):
        agreed({0: identity, 1: identity})


def test_the_seed_of_the_graph_is_everybodys() -> None:
    cohort = Cohort(6)
    adverts = cohort.adverts()
    digests = {adverts_digest(adverts)}
    for i in range(6):
        changed = [*adverts]
        changed[i] = cohort.advert_of(i, s=Pair.new().public)
        digests.add(adverts_digest(changed))
    assert len(digests) == 7
