"""Keys, rosters and certificates: who is let in, and by which key."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from atoll.crypto.keys import Identity, Refused, verify
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trust.roster import (
    MOST,
    NamedIdentity,
    Peer,
    Roster,
    RosterFile,
    Unreadable,
    check_name,
    key_text,
    line_of,
    load_key,
    new_key,
    peer_of,
)  # fmt: skip
from atoll.runtimes.network.trust.tls import Insecure, PartyTLS, Unknown, anchor, certificate, signer, split


@pytest.fixture
def alice(tmp_path: Path) -> NamedIdentity:
    return new_key(tmp_path, "alice")


def test_a_key_comes_back_from_its_file_and_signs(alice: NamedIdentity, tmp_path: Path) -> None:
    again = load_key(tmp_path / "alice.key")
    assert again.name == "alice"
    assert again.identity.public == alice.identity.public
    assert verify(alice.identity.public, b"text", again.identity.sign(b"text"))


def test_only_its_owner_can_read_a_key(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new_key(tmp_path, "alice")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "alice.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o666, 0o601])
def test_a_key_that_others_can_read_is_refused(alice: NamedIdentity, tmp_path: Path, mode: int) -> None:
    (tmp_path / "alice.key").chmod(mode)
    with pytest.raises(Refused, match="chmod 600"):
        load_key(tmp_path / "alice.key")


def test_a_key_is_never_replaced(alice: NamedIdentity, tmp_path: Path) -> None:
    before = (tmp_path / "alice.key").read_bytes()
    with pytest.raises(Refused, match="exists"):
        new_key(tmp_path, "alice")
    assert (tmp_path / "alice.key").read_bytes() == before


def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.touch(0o600)
    path.write_text("SECRETTEXT")
    with pytest.raises(Refused, match="not a private key") as refused:
        load_key(path)
    assert "SECRET" not in str(refused.value)
    other = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(Refused, match="not an Ed25519 key"):
        load_key(path)
    with pytest.raises(FileNotFoundError, match="atoll key new"):
        load_key(tmp_path / "none.key")


def test_no_secret_is_printed(alice: NamedIdentity) -> None:
    shown = f"{alice!r} {alice} {line_of(alice)} {PartyTLS(alice, Peer('hub', bytes(32)))!r}"
    for form in (alice.identity.secret.hex(), key_text(alice.identity.secret), repr(alice.identity.secret)):
        assert form not in shown


@pytest.mark.parametrize("name", ["", "Alice", "a b", "../a", "a/b", "-a", "a.", "ä", "a" * 64, "a\n"])
def test_names_that_are_no_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="name="):
        new_key(tmp_path, name)
    assert not list(tmp_path.iterdir())


@given(st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", fullmatch=True), st.text("abc #é", max_size=9))
def test_a_line_is_read_as_it_was_written(name: str, comment: str) -> None:
    member = NamedIdentity(check_name(name), Identity.new())
    assert peer_of(line_of(member, comment)) == Peer(name, member.identity.public)


KEY_A, KEY_B = key_text(bytes(range(32))), key_text(bytes(range(1, 33)))


@pytest.mark.parametrize(("text", "at", "words"), [
    ("alice\n", 1, "a name and a key"),
    (f"# first\n\nalice {KEY_A}\nalice {KEY_A}\n", 4, "twice"),
    (f"alice {KEY_A}\nbob {KEY_A}\n", 2, "twice"),
    ("alice AAAA\n", 1, "32 bytes"),
    ("alice ****\n", 1, "base64"),
    (f"Alice {KEY_A}\n", 1, "name="),
])  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, text: str, at: int, words: str) -> None:
    path = tmp_path / "roster"
    path.write_text(text)
    with pytest.raises(Refused, match=words) as refused:
        Roster.load(path)
    assert str(refused.value).startswith(f"{path}:{at}: ")


def test_a_roster_keeps_the_order_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "roster"
    path.write_text(f"# who\nbob {KEY_B} of the second house\n  \n  # not her\nalice {KEY_A}\n")
    roster = Roster.load(path)
    assert list(roster.keys) == ["bob", "alice"]
    assert roster.names == {bytes(range(1, 33)): "bob", bytes(range(32)): "alice"}


def test_a_roster_is_read_again_when_it_changes_and_nobody_is_in_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "roster"
    path.write_text(f"alice {KEY_A}\n")
    roster = RosterFile(path)
    first = roster.now()
    assert roster.now() is first
    path.write_text(f"carol {KEY_A}\n")  # the same size
    assert list(roster.now().keys) == ["carol"]
    path.write_text("carol\n")
    for _ in range(2):
        with pytest.raises(Unreadable, match=":1:"):
            roster.now()
    path.unlink()
    with pytest.raises(Unreadable):
        roster.now()
    path.write_text("")
    assert not roster.now().keys
    with pytest.raises(Unreadable):
        RosterFile(tmp_path / "none")


def test_a_certificate_tells_who_signed_it(alice: NamedIdentity) -> None:
    _, pem = certificate(alice)
    assert signer(pem) == alice.identity.public
    made = x509.load_pem_x509_certificate(pem)
    days = (made.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)
    assert 29 < days <= 30
    assert made.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=23)
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(anchor(alice.identity.public)))


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def forged(issuer: str, subject: str, key: Any, by: Ed25519PrivateKey, ca: bool) -> bytes:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named(issuer)).public_key(key)
        .serial_number(7).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
        .add_extension(x509.BasicConstraints(ca, None), True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("atoll")]), False)
    )  # fmt: skip
    return builder.sign(by, None).public_bytes(Encoding.PEM)


def test_nobody_signs_in_anothers_name(alice: NamedIdentity) -> None:
    mine, leaf = Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    for issuer in (alice.identity.public.hex(), "alice", "ff" * 3):
        with pytest.raises(Unknown, match="no identity key signed"):
            signer(forged(issuer, "alice", leaf.public_key(), mine, ca=False))


@pytest.mark.parametrize("as_whom", ["alice", "nobody"])
def test_a_member_cannot_vouch_for_another(federation: Any, as_whom: str) -> None:
    """Mallory is in the roster and makes a chain: her key signs another, which signs a leaf."""
    import grpc

    federation.let_in(federation.alice, federation.mallory)
    federation.serve()
    mallory = Ed25519PrivateKey.from_private_bytes(federation.mallory.identity.secret)
    leaf = ec.generate_private_key(ec.SECP256R1())
    own = mallory.public_key().public_bytes_raw().hex()
    between = federation.alice.identity.public.hex() if as_whom == "alice" else as_whom
    chain = forged(between, "alice", leaf.public_key(), mallory, ca=False)
    chain += forged(own, between, mallory.public_key(), mallory, ca=True)
    secret = leaf.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    credentials = grpc.ssl_channel_credentials(anchor(federation.hub.identity.public), secret, chain)
    options = [("grpc.ssl_target_name_override", "atoll")]
    channel = grpc.secure_channel(federation.address, credentials, options)
    with channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/atoll.v1/Join")(b"I am alice", timeout=5)
    # The handshake does not mind a chain below a known key; who signed the leaf itself is looked at before any call.
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
    assert not federation.service.calls


def test_the_anchor_of_an_ed25519_key_needs_a_p256_leaf(federation: Any) -> None:
    """Why certificates are made the way they are: a certificate of the identity itself ends the handshake."""
    import grpc

    federation.serve()
    key = Ed25519PrivateKey.from_private_bytes(federation.alice.identity.secret)
    own = key.public_key().public_bytes_raw().hex()
    pem = forged(own, "alice", key.public_key(), key, ca=False)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    credentials = grpc.ssl_channel_credentials(anchor(federation.hub.identity.public), secret, pem)
    channel = grpc.secure_channel(federation.address, credentials, [("grpc.ssl_target_name_override", "atoll")])
    with channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/atoll.v1/Join")(b"", timeout=5)
    assert federation.party().hello(b"hi") == b"alice: hi"


@pytest.mark.parametrize("address", ["10.0.0.7:7700", "0.0.0.0:7700", "localhost:7700", "[::]:7700", "example.org:1"])
def test_insecure_is_for_loopback_only(address: str, federation: Any) -> None:
    server = ServerTransport(address, Insecure(), federation.service)
    party = PartyTransport(address, Insecure("alice"))
    for end in (server.start, lambda: party.hello(b"")):
        with pytest.raises(ValueError, match="--insecure is for"):
            end()


@pytest.mark.parametrize(
    "address", ["", "host", "host:", "host:99999", "unix:/tmp/x", "dns:///a:1", "a:1,b:2", "a b:1"]
)
def test_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="address="):
        split(address)
    assert split("[::1]:80") == ("::1", 80)
    assert split("a.example:7700") == ("a.example", 7700)


def test_a_roster_of_many(federation: Any) -> None:
    members = [NamedIdentity(f"p{n}", Identity.new()) for n in range(MOST)]
    federation.let_in(*members)
    federation.serve()
    assert federation.party(members[613]).hello(b"hi") == b"p613: hi"
    with pytest.raises(Refused, match="does not let p613 in"):
        federation.party(NamedIdentity("p613", Identity.new())).hello(b"hi")


def test_a_roster_of_too_many_is_refused_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "roster"
    path.write_text("".join(f"{line_of(NamedIdentity(f'p{n}', Identity.new()))}\n" for n in range(MOST + 1)))
    with pytest.raises(Unreadable, match=r"1,201 keys, and one server takes 1,200: .* edges"):
        RosterFile(path)
