"""LightSecAgg gives the exact sum whoever drops out, or nothing, and nobody sees more than the sum."""

from __future__ import annotations

import base64
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from light_cohort import KNOWN, answer, light_run, run_to

from atoll.crypto import field as gf
from atoll.crypto import light
from atoll.crypto.field import P
from atoll.crypto.keys import Refused
from atoll.crypto.light import STEPS, Light
from atoll.crypto.rehearse import rehearse_light
from atoll.crypto.secagg import Abort


def integers(n: int, d: int, seed: int = 0, most: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, (n, d))


@pytest.mark.parametrize(("n", "privacy", "target"), [(3, 1, 3), (10, 3, 6), (50, 25, 46)])
def test_sums_are_exact_for_every_number_of_dropouts(n: int, privacy: int, target: int) -> None:
    ids = [7 * i + 3 for i in range(n)]
    identities = {ids[i]: KNOWN[i] for i in range(n)}
    rows = integers(n, 23, n)
    for lost in range(n - target + 1):
        drop = {ids[(7 * k) % n]: STEPS[k % 4] for k in range(lost)}
        got = rehearse_light(rows, ids=ids, privacy=privacy, target=target, drop=drop, identities=identities)
        here = [i for i in ids if drop.get(i, "recover") == "recover"]
        assert got.survivors == tuple(here)
        assert got.sum.tolist() == rows[[ids.index(i) for i in here]].sum(0).tolist()


def test_every_schedule_of_five_gives_the_sum_or_nothing() -> None:
    """Each of five parties never drops out or does before one message: 4^5 schedules, and those of the advert once."""
    rows = integers(5, 5, 1)
    never = None
    schedules = list(product((never, *STEPS[1:]), repeat=5))
    schedules += [("advertise", *rest, never, never) for rest in product((never, *STEPS), repeat=2)]
    sums = 0
    for schedule in schedules:
        drop = {i: step for i, step in enumerate(schedule) if step}
        left = [[i for i in range(5) if i not in drop or STEPS.index(drop[i]) > at] for at in range(4)]
        if min(map(len, left)) >= 3:
            got = rehearse_light(rows, privacy=1, target=3, drop=drop, identities=KNOWN)
            assert got.survivors == tuple(left[2])
            assert got.sum.tolist() == rows[left[2]].sum(0).tolist()
            sums += 1
        else:
            with pytest.raises(Abort, match=r"users answered, 3 are needed"):
                rehearse_light(rows, privacy=1, target=3, drop=drop, identities=KNOWN)
    # Up to two of five are lost at one of three steps: 1 + 5 * 3 + 10 * 9. With an advert lost: 1 + 2 * 4.
    assert sums == 106 + 9


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("n", "privacy", "target"), [(3, 1, 3), (10, 3, 6)])
def test_one_dropout_too_many_gives_nothing(n: int, privacy: int, target: int, step: str) -> None:
    drop = dict.fromkeys(range(n - target + 1), step)
    with pytest.raises(Abort, match=f"{step}: {target - 1} users answered, {target} are needed"):
        rehearse_light(integers(n, 4), privacy=privacy, target=target, drop=drop, identities=KNOWN)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_sums_are_exact_for_any_settings(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 9))
    target = data.draw(st.integers(3, n))
    privacy = data.draw(st.integers(1, target - 2))
    lost = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n - target))
    drop = {i: data.draw(st.sampled_from(STEPS)) for i in lost}
    rows = integers(n, data.draw(st.integers(1, 40)), data.draw(st.integers(0, 99)), (P // 2) // n)
    got = rehearse_light(rows, privacy=privacy, target=target, drop=drop, identities=KNOWN)
    assert got.sum.tolist() == rows[list(got.survivors)].sum(0).tolist()
    assert len(got.survivors) >= target


def test_sums_reach_the_last_number_of_the_field_and_no_further() -> None:
    most = P // 2 // 3
    rows = np.array([[most, -most]] * 3)
    assert rehearse_light(rows, privacy=1, target=3).sum.tolist() == [3 * most, -3 * most]
    for over in (rows - np.array([[0, 1]]), rows + np.array([[1, 0]])):
        with pytest.raises(Refused, match="scale the rows down"):
            rehearse_light(over, privacy=1, target=3)
    with pytest.raises(Refused, match="scale the rows down"):
        rehearse_light(np.full((3, 1), -(2**63)), privacy=1, target=3)


def test_any_u_of_the_answers_give_the_same_sum() -> None:
    about = light_run(6, privacy=1, target=4, size=9)
    rows = integers(6, 9, 2)
    clients, server, told = run_to("upload", about)
    for i, client in clients.items():
        server.take(i, client.upload(told[i], gf.from_signed(rows[i])))
    told = server.turn()
    answers = {i: gf.from_bytes(client.recover(told[i]), about.columns) for i, client in clients.items()}
    total = server._total
    for who in combinations(range(6), 4):
        masks = gf.decode(np.stack([answers[i] for i in who]), [about.places[i] for i in who], 3)
        assert gf.to_signed(gf.subtract(total, masks.ravel()[:9])).tolist() == rows.sum(0).tolist()


def test_unmasking_is_the_same_work_whoever_drops_out() -> None:
    rows = integers(20, 60)
    work = []
    for lost in range(7):
        drop = {i: STEPS[i % 4] for i in range(lost)}
        work.append(rehearse_light(rows, privacy=8, target=14, drop=drop, identities=KNOWN).cost.server_work)
    # U - T = 6 rows of ten columns, each from U = 14 answers.
    assert work == [6 * 10 * 14] * 7


def test_bytes_are_those_of_the_formula() -> None:
    """Up: key, letters, vector, answer. Down: adverts, letters, survivors. Frames are at most 2 % on top here."""
    n, size = 20, 6000
    about = light_run(n, privacy=8, target=14, size=size)
    got = rehearse_light(integers(n, size), privacy=8, target=14, identities=KNOWN).cost
    down = n * 96 + (n - 1) * about.letter + n
    for seen in got.bytes.values():
        assert about.bytes_sent() + down <= seen <= 1.02 * (about.bytes_sent() + down)
    assert about.bytes_sent() == 96 + 19 * (4 * 1000 + 28) + 4 * 6000 + 4 * 1000


def test_masked_zeros_are_even() -> None:
    from scipy.stats import chisquare

    clients, _, told = run_to("upload", light_run(size=100_000))
    masked = gf.from_bytes(answer(clients[0], "upload", told[0]), 100_000)
    for digit in (masked % 256, masked >> 23):
        # All but a 2^-23rd part of the residues come equally often.
        assert chisquare(np.bincount(digit, minlength=256)).pvalue > 1e-4
    other = gf.from_bytes(answer(clients[1], "upload", told[1]), 100_000)
    assert np.mean(masked == other) < 1e-3


def test_masks_are_new_in_every_session() -> None:
    seen = set()
    for _ in range(3):
        clients, _, told = run_to("upload")
        seen |= {answer(client, "upload", told[i]) for i, client in clients.items()}
    assert len(seen) == 15


def test_letters_are_sealed() -> None:
    """What the server routes does not hold a share in the clear."""
    clients, _, told = run_to("share")
    message = clients[0].share(told[0])
    mine = gf.to_bytes(clients[0]._shares[0])
    parts = gf.uniform(clients[0]._mask_key, 3 * 4).reshape(3, 4)
    for share in gf.encode(parts, 5):
        assert gf.to_bytes(share) not in message
    assert gf.to_bytes(gf.encode(parts, 5)[0]) == mine


def test_no_secret_is_printed() -> None:
    clients, server, told = run_to("upload")
    client = clients[0]
    hidden = [client._mask_key, client._pair.secret, client._identity.secret, *client._secrets.values()]
    said = [repr(x) for x in (client, server, client.light, client.__dict__["light"])]
    with pytest.raises(Abort) as caught:
        answer(client, "upload", told[1])
    said.append(repr(caught.value))
    text = " ".join(said).lower()
    for secret in hidden:
        for form in (secret.hex(), base64.b64encode(secret).decode().lower(), str(secret)[2:-1].lower()):
            assert form not in text
    assert client._mask_key == b""
    assert client._secrets == client._shares == {}


def test_it_says_whom_it_trusts() -> None:
    assert Light.adversary == "semi-honest server"
    assert "Semi-honest" in str(light.__doc__)
