"""Mutual TLS that trusts pinned keys and nothing else.

An identity is an Ed25519 key. gRPC's TLS takes no Ed25519 certificate in a handshake, but it does take a certificate
that an Ed25519 key signed. So each process makes a P-256 key that never touches the disk for long, its identity signs
the certificate, and whoever pinned the identity's public key builds the trust anchor out of that key alone. A roster
line therefore holds one short key, and no certificate can run out while nobody looks.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from atoll.core.errors import NotInstalled
from atoll.crypto.keys import Identity, Refused, refuse_if
from atoll.runtimes.network.trust.proxy import ProxyRefuses, connected
from atoll.runtimes.network.trust.roster import (
    NamedIdentity,
    Peer,
    Roster,
    RosterFile,
    Unreadable,
    check_name,
    key_text,
    line_of,
)
from atoll.runtimes.network.trust.successor import announcement, remember, successors

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

HOST = "atoll"  # the host name of every certificate: the key is what counts
LASTS = timedelta(days=30)
EARLY = timedelta(days=1)  # clocks may differ by as much
RENEW = 24 * 3600.0  # seconds after which a process makes itself a new certificate
PROBE = 1.0  # seconds that each step of a diagnosis may take
EXPIRED = (9, 10)  # OpenSSL's codes of a certificate that is not valid yet, or no longer


class Unknown(Refused):
    """A peer whose key is not in the roster now."""

    code = "unknown_key"


def grpc_library() -> ModuleType:
    """The library, imported when it is first needed; left alone it logs every failed handshake of every stranger."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc
    except ImportError:
        raise NotInstalled("the network needs grpcio: pip install 'atoll[network]'") from None
    return grpc


def certificate(member: NamedIdentity, lasts: timedelta = LASTS) -> tuple[bytes, bytes]:
    """Make a fresh TLS key and the certificate that the member's identity signs for it, both in PEM form."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(_named(member.name))
        .issuer_name(_named(member.identity.public.hex()))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + lasts)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(Ed25519PrivateKey.from_private_bytes(member.identity.secret), None)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret, signed.public_bytes(Encoding.PEM)


@lru_cache(maxsize=4096)
def anchor(key: bytes) -> bytes:
    """A trust anchor for whatever this identity signed itself. An anchor's own signature is never looked at."""
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(key.hex()))
        .issuer_name(_named(key.hex()))
        .public_key(Ed25519PublicKey.from_public_bytes(key))
        .serial_number(1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(Ed25519PrivateKey.generate(), None)
    )
    return made.public_bytes(Encoding.PEM)


@lru_cache(maxsize=4096)
def signer(pem: bytes) -> bytes:
    """The identity key that signed this certificate itself.

    TLS would also take a chain in which one member's key signs another's name; here nobody stands between.
    """
    signed = x509.load_pem_x509_certificate(pem)
    try:
        (issuer,) = signed.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = bytes.fromhex(str(issuer.value))
        Ed25519PublicKey.from_public_bytes(key).verify(signed.signature, signed.tbs_certificate_bytes)
    except (ValueError, InvalidSignature):
        raise Unknown("a certificate that no identity key signed") from None
    return key


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def split(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[::1]:port"; nothing else is an address."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", address)
    if not found or int(found[2]) > 65535:
        raise Refused(f"address={address!r}: an address is host:port, such as 10.0.0.7:7700")
    return found[1].strip("[]"), int(found[2])


@dataclass(frozen=True)
class ServerTLS:
    """The server's identity, the roster of those it lets in, and the key that it announces as its next one."""

    member: NamedIdentity
    roster: RosterFile
    lasts: timedelta = LASTS
    following: bytes | None = None

    @property
    def successor(self) -> bytes:
        return announcement(self.member.identity, self.following) if self.following else b""

    def bind(self, server: grpc.Server, address: str) -> int:
        library = grpc_library()
        roster, made = self.roster.now(), time.monotonic()

        def configuration(roster: Roster) -> grpc.ServerCertificateConfiguration:
            # Without any root TLS would trust those of the system; the own key is not in the roster either.
            known = [*roster.names] or [self.member.identity.public]
            return library.ssl_server_certificate_configuration(
                [certificate(self.member, self.lasts)], b"".join(map(anchor, known))
            )

        def fresh() -> grpc.ServerCertificateConfiguration | None:
            """For each handshake: what it must trust now, or None if nothing has changed."""
            nonlocal roster, made
            try:
                latest = self.roster.now()
            except Unreadable:
                return None  # each call is refused while the roster cannot be read
            if latest is roster and time.monotonic() - made < RENEW:
                return None
            roster, made = latest, time.monotonic()
            return configuration(latest)

        return int(
            server.add_secure_port(address, library.dynamic_ssl_server_credentials(configuration(roster), fresh, True))
        )

    def name(self, context: grpc.ServicerContext) -> str:
        """The roster's name of whoever calls, by the key behind the connection and the roster of this moment."""
        (pem,) = context.auth_context().get("x509_pem_cert") or (None,)
        refuse_if(pem is None, "a caller without a certificate", Unknown)
        key = signer(pem)
        name = self.roster.name_of(key)
        if name is None:
            raise Unknown(f"the key {key_text(key)} is not in the server's roster (any more): ask its owner")
        return name


@dataclass(frozen=True)
class PartyTLS:
    """A party's identity, and the one server it talks to; what that said of its next keys is in the folder."""

    member: NamedIdentity
    server: Peer
    folder: Path | None = None
    lasts: timedelta = LASTS
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> Identity:
        return self.member.identity

    def channel(self, address: str, options: Sequence[tuple[str, int | str]]) -> grpc.Channel:
        grpc = grpc_library()
        credentials = grpc.ssl_channel_credentials(self._anchors(), *certificate(self.member, self.lasts))
        return grpc.secure_channel(address, credentials, [*options, ("grpc.ssl_target_name_override", HOST)])

    def _anchors(self) -> bytes:
        later = successors(self.server.key, self.folder) if self.folder else ()
        return b"".join(map(anchor, (self.server.key, *later)))

    def told(self, said: bytes) -> bool:
        """Trust the key that the server announces; tell whether it is new."""
        return self.folder is not None and remember(self.server.key, self.folder, said) is not None

    def trouble(self, address: str, proxy: str | None = None) -> str | None:
        """Why the server and this party do not come together, as a handshake tells; None if it cannot be reached."""
        if self.lasts <= timedelta():
            return f"the certificate of {self.member.name} has expired: it lasts {self.lasts}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the key counts, and the anchor trusts no other
        context.load_verify_locations(cadata=self._anchors().decode())
        with tempfile.NamedTemporaryFile() as file:  # ssl reads keys from files only
            file.write(b"".join(certificate(self.member)))
            file.flush()
            context.load_cert_chain(file.name)
        try:
            with _shaken(context, address, proxy) as line:
                return None if line.recv(1) else self._turned_away(address)
        except ProxyRefuses as refusal:
            return str(refusal)
        except OSError as error:
            return self._told(error, address)

    def _told(self, error: OSError, address: str) -> str | None:
        """What an error in the handshake means."""
        match error:
            case ssl.SSLCertVerificationError() if error.verify_code in EXPIRED:
                return f"the certificate of the server at {address} has expired, or a clock is wrong: look at both"
            case ssl.SSLCertVerificationError():
                return (
                    f"the server at {address} is not {self.server.name}: its key is not {key_text(self.server.key)}, "
                    "which this party trusts"
                )
            case ConnectionResetError():
                return self._turned_away(address)
            case ssl.SSLError() if "ALERT" in (error.reason or ""):
                return self._turned_away(address)
            case ssl.SSLError():
                return f"the server at {address} does not speak TLS: it may have been started with --insecure"
        return None

    def _turned_away(self, address: str) -> str:
        return (
            f"the server at {address} does not let {self.member.name} in: its roster has no line "
            f"'{line_of(self.member)}', or the clocks differ by more than a day"
        )


class Credentials(Protocol):
    """How a party shows who it is."""

    @property
    def identity(self) -> Identity | None: ...


@dataclass(frozen=True)
class Insecure:
    """No TLS, names as they are claimed: for tests on one machine, and refused on any address but its own."""

    claim: str = ""
    identity: None = None  # nobody can prove a name without a key
    successor: bytes = b""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("atoll-name", check_name(self.claim)),)

    def bind(self, server: grpc.Server, address: str) -> int:
        return int(server.add_insecure_port(_loopback(address)))

    def name(self, context: grpc.ServicerContext) -> str:
        return check_name(str(dict(context.invocation_metadata()).get("atoll-name", "")))

    def told(self, said: bytes) -> bool:
        return False  # nobody can announce a key without one

    def channel(self, address: str, options: Sequence[tuple[str, int | str]]) -> grpc.Channel:
        return grpc_library().insecure_channel(_loopback(address), options)

    def trouble(self, address: str, proxy: str | None = None) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent, only the manner is heard
        try:
            with _shaken(context, address, proxy):
                return f"the server at {address} speaks TLS: leave --insecure out"
        except OSError:
            return None


def _loopback(address: str) -> str:
    try:
        safe = ipaddress.ip_address(split(address)[0]).is_loopback
    except ValueError:
        safe = False
    if not safe:
        raise Refused(f"address={address!r}: --insecure is for 127.0.0.1 and [::1] only; elsewhere use keys")
    return address


@contextlib.contextmanager
def _shaken(context: ssl.SSLContext, address: str, proxy: str | None) -> Iterator[ssl.SSLSocket]:
    context.set_alpn_protocols(["h2"])
    with (
        connected(*split(address), proxy, PROBE) as raw,
        context.wrap_socket(raw, server_hostname=HOST) as line,
    ):
        yield line
