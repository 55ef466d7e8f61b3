"""CKKS: sums are exact on the grid, the secret stays with its owner, and hostile bytes kill a child at most."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.crypto import ckks
from atoll.crypto.ckks import GRID, LIMIT, SLOTS, ChildDied, Ckks

pytest.importorskip("tenseal")


@pytest.fixture(scope="module")
def owner() -> Iterator[Ckks]:
    with Ckks.new() as key:
        yield key


@pytest.fixture(scope="module")
def party(owner: Ckks) -> Iterator[Ckks]:
    with Ckks(owner.public()) as key:
        yield key


def on_grid(x: np.ndarray) -> np.ndarray:
    return np.rint(x / GRID) * GRID


@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from([1e-6, 1.0, 1e3, LIMIT / 5]), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_sums_are_exact_on_the_grid(
    owner: Ckks, party: Ckks, parties: int, chunks: int, size: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    count = int(generator.integers((chunks - 1) * SLOTS + 1, chunks * SLOTS, endpoint=True))
    vectors = generator.uniform(-size, size, (parties, count))
    total = party.add([party.encrypt(vector) for vector in vectors])
    assert len(total) == chunks
    assert (owner.decrypt(total, count) == on_grid(vectors).sum(0)).all()


def test_more_parties_than_one_question_holds(owner: Ckks, party: Ckks) -> None:
    encrypted = [party.encrypt(np.full(3, i + 0.5)) for i in range(4)] * 40
    assert owner.decrypt(party.add(encrypted), 3).tolist() == [320.0] * 3
    assert owner.decrypt(party.add(encrypted[:1]), 3).tolist() == [0.5] * 3


@pytest.mark.parametrize("shape", ["signs", "halves", "uniform", "spike"])
def test_the_error_is_far_below_the_grid(owner: Ckks, party: Ckks, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """What rounding removes of sums of 64 vectors: a sixtieth of the grid for the largest, far less up to 1."""
    seen: list[np.ndarray] = []
    monkeypatch.setattr(ckks, "_on_grid", lambda x: seen.append(x) or x)
    generator = np.random.default_rng(3)
    vector = {
        "signs": generator.choice([-1.0, 1.0], SLOTS),
        "halves": np.repeat([-1.0, 1.0], SLOTS // 2),
        "uniform": generator.uniform(-1, 1, SLOTS),
        "spike": np.eye(1, SLOTS)[0],
    }[shape]
    for size, share in [(1.0, 1 / 1000), (LIMIT, 1 / 32)]:
        part = on_grid(vector * size / 64)
        owner.decrypt(party.add([party.encrypt(part)] * 32 + [party.encrypt(part) for _ in range(32)]), SLOTS)
        assert 0 < np.abs(seen[-1] - 64 * part).max() < GRID * share


def test_bytes_are_about_as_stated(party: Ckks) -> None:
    vector = np.random.default_rng(5).normal(size=SLOTS)
    assert abs(len(party.encrypt(vector)[0]) - ckks.BYTES) < 0.01 * ckks.BYTES


def test_equal_vectors_encrypt_differently(party: Ckks) -> None:
    x = np.ones(4)
    assert len({party.encrypt(x)[0] for _ in range(10)}) == 10


def test_nothing_encrypts_to_nothing(owner: Ckks) -> None:
    assert owner.encrypt(np.zeros(0)) == []
    assert owner.decrypt([], 0).size == 0


def test_values_that_would_break_the_grid_are_refused(owner: Ckks) -> None:
    for bad in ([np.nan], [np.inf], [-np.inf], [LIMIT * 1.001], [[1.0]]):
        with pytest.raises(ValueError, match="a vector of finite values up to ±1048576"):
            owner.encrypt(np.array(bad))
    assert owner.decrypt(owner.encrypt(np.array([LIMIT, -LIMIT])), 2).tolist() == [LIMIT, -LIMIT]
    one = owner.encrypt(np.array([LIMIT]))
    with pytest.raises(ValueError, match="a decrypted value beyond"):
        owner.decrypt(owner.add([one, one]), 1)


@pytest.mark.parametrize("off", [0.3, 0.5, 0.7])
def test_values_between_grid_points_are_refused(off: float) -> None:
    """Rounding them would tell on which side the error lies, and the error tells of the secret key."""
    with pytest.raises(ValueError, match="off the grid"):
        ckks._on_grid(np.array([1.0, 2.0 + off * GRID]))
    assert ckks._on_grid(np.array([1.0 + 0.1 * GRID, -1e-12])).tolist() == [1.0, 0.0]


def test_only_the_owner_decrypts(owner: Ckks, party: Ckks) -> None:
    assert owner.private
    assert not party.private
    encrypted = party.encrypt(np.ones(2))
    with pytest.raises(ValueError, match="only the owner of the secret half decrypts"):
        party.decrypt(encrypted, 2)
    with pytest.raises(ValueError, match="only the owner can save"):
        party.secret()
    # Nor does its child, which does not have the secret: the refusal is not only ours.
    with pytest.raises(ValueError, match="CKKS decrypt refused"):
        party._ask(b"decrypt", encrypted[0])
    assert len(party.public()) < len(owner.secret())


def test_a_saved_key_decrypts_later(owner: Ckks, party: Ckks) -> None:
    encrypted = party.encrypt(np.array([1.5, -2.0]))
    with Ckks(owner.secret()) as again:
        assert again.private
        assert again.decrypt(encrypted, 2).tolist() == [1.5, -2.0]


def test_secrets_are_not_shown(owner: Ckks, party: Ckks) -> None:
    assert repr(owner) == "Ckks(secret key, N=8192)"
    assert repr(party) == "Ckks(public key, N=8192)"


def test_another_key_reads_nothing(owner: Ckks, party: Ckks) -> None:
    with Ckks.new() as stranger, pytest.raises(ValueError, match="a decrypted value"):
        stranger.decrypt(party.encrypt(np.ones(2)), 2)


def tenseal_says(code: str, given: bytes = b"") -> bytes:
    """Run TenSEAL itself elsewhere: it is not loaded into this process."""
    script = "import sys, tenseal as ts\n" + code
    return subprocess.run([sys.executable, "-c", script], input=given, capture_output=True, check=True).stdout


def test_keys_of_other_parameters_are_refused() -> None:
    make = "c = ts.context(ts.SCHEME_TYPE.CKKS, {}, coeff_mod_bit_sizes={}); c.global_scale = 2.0**{}\n"
    write = "sys.stdout.buffer.write(c.serialize({}, False, False, False))"
    for degree, moduli, scale, public in [
        (4096, [40, 20, 40], 56, True),
        (8192, [60, 40, 40, 60], 56, True),
        (8192, [60, 40, 60], 40, True),
        (8192, [60, 40, 60], 56, False),
    ]:
        raw = tenseal_says(make.format(degree, moduli, scale) + write.format(public))
        with pytest.raises(ValueError, match="CKKS key refused: the bytes are broken"):
            Ckks(raw)
    exact = tenseal_says("c = ts.context(ts.SCHEME_TYPE.BFV, 8192, 1032193)\n" + write.format(True))
    with pytest.raises(ValueError, match="CKKS key refused"):
        Ckks(exact)


@pytest.mark.parametrize("wrong", ["vector(c, [1.0])", "vector(c, [1.0] * 4096, 2.0**30)", "tensor(c, [1.0])"])
def test_ciphertexts_of_another_shape_are_refused(owner: Ckks, wrong: str) -> None:
    code = f"c = ts.context_from(sys.stdin.buffer.read()); sys.stdout.buffer.write(ts.ckks_{wrong}.serialize())"
    raw = tenseal_says(code, owner.public())
    with pytest.raises(ValueError, match="CKKS decrypt refused"):
        owner.decrypt([raw], 1)


def test_sizes_are_checked_before_the_child_sees_anything(owner: Ckks) -> None:
    for bad in (b"", b"x" * (2**18 + 1)):
        with pytest.raises(ValueError, match=f"a CKKS ciphertext of {len(bad)} bytes"):
            owner.decrypt([bad], 1)
        with pytest.raises(ValueError, match=f"a CKKS ciphertext of {len(bad)} bytes"):
            owner.add([[bad]])
    with pytest.raises(ValueError, match="a CKKS key of 1048577 bytes"):
        Ckks(b"x" * (2**20 + 1))
    with pytest.raises(ValueError, match="2 ciphertexts for 4096 values"):
        owner.decrypt([b"x", b"x"], SLOTS)
    for bad_sum in ([], [[b"x"], []]):
        with pytest.raises(ValueError, match="of different lengths, or none"):
            owner.add(bad_sum)


def test_a_dead_child_is_said_and_replaced(owner: Ckks) -> None:
    encrypted = owner.encrypt(np.ones(3))
    for how in (signal.SIGSEGV, signal.SIGKILL):
        assert owner._child is not None
        os.kill(owner._child.process.pid, how)
        with pytest.raises(ChildDied, match="the CKKS child died at decrypt"):
            owner.decrypt(encrypted, 3)
        assert owner.decrypt(encrypted, 3).tolist() == [1.0] * 3


def test_a_child_that_hangs_is_killed(owner: Ckks, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypted = owner.encrypt(np.ones(3))
    assert owner._child is not None
    os.kill(owner._child.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(ckks, "_SECONDS", 0.2)
    with pytest.raises(ChildDied, match="the CKKS child died at decrypt"):
        owner.decrypt(encrypted, 3)


def test_a_closed_key_opens_again() -> None:
    key = Ckks.new()
    key.close()
    key.close()
    assert key.decrypt(key.encrypt(np.ones(1)), 1).tolist() == [1.0]
    assert key._child is not None
    process = key._child.process
    del key
    assert process.returncode is not None, "a forgotten key leaves no process behind"


def test_a_child_ends_with_its_parent() -> None:
    """The pipe that says so is held by the child alone once its parent, which had no time to tidy up, is gone."""
    code = "\n".join([
        "import os, sys", "from atoll.crypto import ckks", "started = ckks.subprocess.Popen",
        "ckks.subprocess.Popen = lambda *a, **k: started(*a, **k | {'close_fds': False})",
        "os.set_inheritable(int(sys.argv[1]), True)", "key = ckks.Ckks.new()", "os._exit(0)",
    ])  # fmt: skip
    ours, theirs = os.pipe()
    subprocess.run([sys.executable, "-c", code, str(theirs)], check=True, pass_fds=[theirs], timeout=60)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        assert pipe.read() == b"", "returns only when nobody holds the other end any more"


def test_a_missing_library_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"CKKS needs TenSEAL: pip install 'atoll\[ckks\]'"):
        Ckks.new()


def test_the_library_is_never_loaded_here() -> None:
    code = "from atoll.crypto.ckks import Ckks; import sys; Ckks.new().encrypt([1.0]); print('tenseal' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def mutated(good: bytes, generator: random.Random) -> bytes:
    """Flip bits, change the header, cut, repeat a piece elsewhere, or lengthen."""
    raw = bytearray(good)
    at, size = generator.randrange(len(raw)), generator.randrange(1, 5000)
    match generator.randrange(6):
        case 0:
            for _ in range(generator.choice([1, 1, 4, 64])):
                raw[generator.randrange(len(raw))] ^= 1 << generator.randrange(8)
        case 1:
            raw[generator.randrange(200)] = generator.randrange(256)
        case 2:
            for _ in range(3):
                raw[generator.randrange(64)] = generator.choice([0, 1, 127, 128, 255])
        case 3:
            del raw[at:]
        case 4:
            other = generator.randrange(len(raw))
            raw[at : at + size] = raw[other : other + size]
        case 5:
            raw[at:at] = generator.randbytes(size)
    return bytes(raw)


def survives(owner: Ckks, party: Ckks, count: int, seed: int) -> int:
    """Decrypt, add and load keys from this many mutations; return how many were refused or killed a child."""
    generator = random.Random(seed)
    good = party.encrypt(np.arange(SLOTS) / 8)[0]
    stopped = 0
    for i in range(count):
        bad = mutated(good, generator)
        try:
            if i % 4:
                owner.decrypt([bad], SLOTS)
            else:
                party.add([[good], [bad]])
        except (ValueError, ChildDied):
            stopped += 1
    assert owner.decrypt([good], SLOTS).tolist() == (np.arange(SLOTS) / 8).tolist()
    return stopped


def test_five_hundred_mutated_ciphertexts(owner: Ckks, party: Ckks) -> None:
    assert survives(owner, party, 500, 1) > 400


@pytest.mark.slow
def test_ten_thousand_mutated_ciphertexts(owner: Ckks, party: Ckks) -> None:
    assert survives(owner, party, 10_000, 2) > 8_000


def test_mutated_keys(owner: Ckks) -> None:
    generator = random.Random(3)
    stopped = 0
    for _ in range(8):
        try:
            Ckks(mutated(owner.public(), generator)).close()
        except (ValueError, ChildDied):
            stopped += 1
    assert stopped > 4
