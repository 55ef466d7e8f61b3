"""LightSecAgg (So et al., MLSys 2022): one mask a user, shared by a code, so that U answers unmask the sum at once.

**Semi-honest**: the server is trusted to follow the protocol. Use `atoll.crypto.secagg` where it may lie.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import ClassVar, TypeVar

import msgspec
import numpy as np

from atoll.crypto import field as gf
from atoll.crypto import keys
from atoll.crypto.field import Elements, P
from atoll.crypto.keys import KEY, NONCE, SIGNATURE, TAG, Abort, Identity, Pair, Refused, packed, refuse_if

PROTOCOL = "atoll/light/2"
STEPS = ("advertise", "share", "upload", "recover")
_SMALL = 64  # bytes that the frame of a list, and of each of its items, takes at most
_PAIRS = msgspec.msgpack.Decoder(list[tuple[int, bytes]])
_NAMES = msgspec.msgpack.Decoder(list[int])


@dataclass(frozen=True)
class Light:
    """What every party of one round knows beforehand: who may take part, and how many of them are needed.

    Hides, from the server and any `privacy` (T) users together, all but the sum of the survivors' vectors. Needs
    `target` (U) answers, so any n - U users may drop out at any time. A sum holds at least U - T vectors of others.
    """

    adversary: ClassVar[str] = "semi-honest server"
    roster: Mapping[int, bytes]  # the public key each party signs with
    privacy: int
    target: int
    size: int
    session: bytes
    round_no: int = 0
    model: bytes = b""  # a hash of all else that the parties agree in: the job, the question, who is who

    def __post_init__(self) -> None:
        n = len(self.roster)
        refuse_if(self.privacy < 1, f"privacy={self.privacy}: at least one user may collude with the server")
        least = self.privacy + 2  # with one less, T users could take their own vectors from a sum and keep one other
        refuse_if(self.target < least, f"target={self.target}: with privacy={self.privacy} it is at least {least}")
        refuse_if(self.target > n, f"target={self.target}: only {n} parties are on the roster")
        refuse_if(self.size < 1, f"size={self.size}: a vector has at least one number")
        refuse_if(self.round_no < 0, f"round_no={self.round_no}: rounds count from 0")
        refuse_if(any(i < 0 for i in self.roster), "a party below 0: parties count from 0")
        refuse_if(len(set(self.roster.values())) < n, "two parties with one key: every party has its own")

    @cached_property
    def places(self) -> Mapping[int, int]:
        """Which share is whose."""
        return {i: place for place, i in enumerate(sorted(self.roster))}

    @property
    def columns(self) -> int:
        """Numbers of one share: a mask is cut into U - T rows of so many."""
        return -(-self.size // (self.target - self.privacy))

    @property
    def letter(self) -> int:
        """Bytes of one sealed share."""
        return 4 * self.columns + NONCE + TAG

    @cached_property
    def context(self) -> bytes:
        """Hash of all of it: who differs in anything cannot take part in the same round."""
        parties = packed(*(value for i in sorted(self.roster) for value in (i, self.roster[i])))
        numbers = packed(self.privacy, self.target, self.size, self.round_no)
        return sha256(packed(PROTOCOL, self.session, numbers, self.model, parties)).digest()

    def statement(self, who: int, key: bytes) -> bytes:
        """Give what a party signs when it advertises a key."""
        return packed(PROTOCOL, "advertise", self.context, who, key)

    def bytes_sent(self) -> int:
        """Bytes that one user sends in a round, but for the frames of its letters."""
        return KEY + SIGNATURE + (len(self.roster) - 1) * self.letter + 4 * self.size + 4 * self.columns


T = TypeVar("T")


def _after(step: str) -> str:
    return (*STEPS, "nothing")[STEPS.index(step) + 1]


def _listed(decoder: msgspec.msgpack.Decoder[list[T]], data: bytes, *, items: int, each: int, what: str) -> list[T]:
    """Decode a list that a peer sent, after its size has been looked at."""
    limit = _SMALL + items * (each + _SMALL)
    refuse_if(len(data) > limit, f"{what} of {len(data)} bytes: {limit} are the most", Abort)
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        raise Abort(f"{what} that cannot be read: the session is over") from None


def _by_party(data: bytes, *, items: int, each: int, what: str) -> dict[int, bytes]:
    pairs = _listed(_PAIRS, data, items=items, each=each, what=what)
    found = dict(pairs)
    refuse_if(len(found) < len(pairs), f"{what} with a party twice: the session is over", Abort)
    return found


def _advertised_key(light: Light, who: int, advert: bytes) -> bytes:
    """Give the key of an advert, once its signature has been checked."""
    refuse_if(who not in light.roster, f"party {who} is not on the roster: the session is over", Abort)
    refuse_if(len(advert) != KEY + SIGNATURE, f"an advert of {len(advert)} bytes by party {who}: it has 96", Abort)
    key, signature = advert[:KEY], advert[KEY:]
    signed = keys.verify(light.roster[who], light.statement(who, key), signature)
    refuse_if(not signed, f"party {who} did not sign this key for this round: the session is over", Abort)
    return key


class LightClient:
    """One user in one round. Each step is taken once and in order; after an `Abort` nothing more is answered.

    `sign` refuses survivors that this user helps to unmask in no round, and notes the others before it does.
    """

    def __init__(
        self, light: Light, me: int, identity: Identity, sign: Callable[[Sequence[int]], None] = lambda _: None
    ) -> None:
        refuse_if(light.roster.get(me) != identity.public, f"party {me}: the roster has another key for it")
        self.light, self.me, self._sign = light, me, sign
        self._due = STEPS[0]
        self._identity, self._pair = identity, Pair.new()
        self._mask_key = _mask_key(light, secrets.token_bytes(KEY), me)
        self._secrets: dict[int, bytes] = {}  # agreed with each peer
        self._shares: dict[int, Elements] = {}  # of each user's mask, the one that is mine

    def __repr__(self) -> str:
        return f"LightClient(me={self.me}, due={self._due!r})"

    @contextmanager
    def _turn(self, step: str) -> Iterator[None]:
        """Let the step be taken if it is due; whatever goes wrong in it ends the session."""
        due, self._due = self._due, "nothing"
        try:
            refuse_if(due != step, f"{step} was asked for when {due} is due: the session is over", Abort)
            yield
            self._due = _after(step)
        except Refused as refused:
            raise Abort(f"{refused}: the session is over") from None
        finally:
            if self._due == "nothing":
                self._mask_key, self._secrets, self._shares = b"", {}, {}

    def answer(self, step: str, message: bytes, x: Elements) -> bytes:
        """Answer any message; the first one needs nothing."""
        match step:
            case "advertise":
                return self.advertise()
            case "share":
                return self.share(message)
            case "upload":
                return self.upload(message, x)
            case _:
                return self.recover(message)

    def advertise(self) -> bytes:
        """Give a fresh key, signed for this round."""
        with self._turn("advertise"):
            key = self._pair.public
            return key + self._identity.sign(self.light.statement(self.me, key))

    def share(self, bundle: bytes) -> bytes:
        """Draw the mask, and seal to every user whose key is in the bundle its share of it."""
        with self._turn("share"):
            light, n = self.light, len(self.light.roster)
            adverts = _by_party(bundle, items=n, each=KEY + SIGNATURE, what="a bundle")
            public = {i: _advertised_key(light, i, advert) for i, advert in adverts.items()}
            refuse_if(len(public) < light.target, f"{len(public)} keys: {light.target} users are needed", Abort)
            refuse_if(public.get(self.me) != self._pair.public, "the bundle does not hold my key as I sent it", Abort)
            refuse_if(len(set(public.values())) < len(public), "two parties with one key: the session is over", Abort)
            self._secrets = {i: keys.agree(self._pair, key) for i, key in public.items() if i != self.me}
            parts = gf.uniform(self._mask_key, light.target * light.columns).reshape(light.target, light.columns)
            shares = gf.encode(parts, n)
            self._shares[self.me] = shares[light.places[self.me]].copy()
            letters = [(j, self._seal(j, shares[light.places[j]])) for j in sorted(self._secrets)]
            return msgspec.msgpack.encode(letters)

    def upload(self, inbox: bytes, x: Elements) -> bytes:
        """Open the shares of the others, then give x (elements of the field) under the mask."""
        with self._turn("upload"):
            light = self.light
            fits = x.dtype == np.uint32 and x.shape == (light.size,) and int(x.max()) < P
            refuse_if(not fits, f"a {x.dtype} array {x.shape}: a vector is {light.size} uint32 below {P}", Abort)
            letters = _by_party(inbox, items=len(self._secrets), each=light.letter, what="an inbox")
            for i, box in letters.items():
                refuse_if(i not in self._secrets, f"a share of party {i}, who has no key here", Abort)
                self._shares[i] = self._open(i, box)
            refuse_if(len(self._shares) < light.target, f"{len(self._shares)} users shared: {light.target} must", Abort)
            # The mask is the first rows of what was shared: the stream begins with them.
            return gf.to_bytes(gf.add(x, gf.uniform(self._mask_key, light.size)))

    def recover(self, survivors: bytes) -> bytes:
        """Give the sum of the survivors' shares: for one list in a round, and no second one."""
        with self._turn("recover"):
            names = _listed(_NAMES, survivors, items=len(self._shares), each=8, what="a list of survivors")
            refuse_if(len(set(names)) < len(names), "a list of survivors with a party twice", Abort)
            foreign = sorted(set(names) - set(self._shares))
            refuse_if(bool(foreign), f"parties {foreign} as survivors: they shared nothing with me", Abort)
            refuse_if(self.me not in names, "a list of survivors without me: the session is over", Abort)
            least = self.light.target
            refuse_if(len(names) < least, f"{len(names)} survivors: no sum of fewer than {least} is unmasked", Abort)
            self._sign(names)
            return gf.to_bytes(gf.add_up([self._shares[i] for i in names]))

    def _seal(self, j: int, share: Elements) -> bytes:
        light, key = self.light, _letter_key(self.light, self._secrets[j], self.me, j)
        return keys.seal(key, gf.to_bytes(share), context=light.context, i=self.me, j=j)

    def _open(self, i: int, box: bytes) -> Elements:
        light, key = self.light, _letter_key(self.light, self._secrets[i], i, self.me)
        text = keys.open_sealed(key, box, context=light.context, i=i, j=self.me)
        return _from_peer(text, light.columns, i)


def _mask_key(light: Light, seed: bytes, me: int) -> bytes:
    """The key of a party's own mask. All that was agreed is in it: a mask is for one round of one job."""
    return keys.derive(seed, purpose="light mask", context=light.context, i=me, j=me)


def _letter_key(light: Light, secret: bytes, i: int, j: int) -> bytes:
    return keys.derive(secret, purpose="light", context=light.context, i=i, j=j)


def _from_peer(data: bytes, count: int, who: int) -> Elements:
    """Read a peer's elements, or refuse them with its name."""
    try:
        return gf.from_bytes(data, count)
    except ValueError as error:
        raise Abort(f"party {who} sent {error}") from None


class LightServer:
    """The honest other side: it routes, adds up, and unmasks from exactly U answers whoever dropped out.

    A message that is not right raises `Abort` and changes nothing: its sender counts as dropped out. A step that too
    few users took raises `Abort` when it is closed, and the session is over.
    """

    def __init__(self, light: Light) -> None:
        self.light = light
        self.multiply_adds = 0  # that unmasking took
        self._due = STEPS[0]
        self._adverts: dict[int, bytes] = {}
        self._letters: dict[int, dict[int, bytes]] = {}  # by sender, then receiver
        self._total = np.zeros(light.size, np.uint32)
        self._uploaded: list[int] = []
        self._answers: dict[int, Elements] = {}

    def take(self, who: int, message: bytes) -> None:
        """Take one user's message of the step that is open."""
        light = self.light
        refuse_if(self._due not in STEPS, f"a message of party {who} after the end: the session is over", Abort)
        match self._due:
            case "advertise":
                _admit(who, light.roster, self._adverts)
                _advertised_key(light, who, message)
                self._adverts[who] = message
            case "share":
                _admit(who, self._adverts, self._letters)
                letters = _by_party(message, items=len(self._adverts) - 1, each=light.letter, what="a set of letters")
                due = {j: light.letter for j in self._adverts if j != who}
                wrong = {j: len(box) for j, box in letters.items()} != due
                refuse_if(wrong, f"party {who} did not write a letter of {light.letter} bytes to every other", Abort)
                self._letters[who] = letters
            case "upload":
                _admit(who, self._letters, self._uploaded)
                self._total = gf.add(self._total, _from_peer(message, light.size, who))
                self._uploaded.append(who)
            case "recover":
                _admit(who, self._uploaded, self._answers)
                share = _from_peer(message, light.columns, who)
                if len(self._answers) < light.target:  # more of them would only be more work
                    self._answers[who] = share

    def turn(self) -> dict[int, bytes]:
        """Close the open step: what each of those who took it is sent next."""
        match self._due:
            case "advertise":
                self._close("advertise", self._adverts)
                return dict.fromkeys(self._adverts, msgspec.msgpack.encode(sorted(self._adverts.items())))
            case "share":
                self._close("share", self._letters)
                return {j: self._inbox(j) for j in self._letters}
            case _:
                self._close("upload", self._uploaded)
                return dict.fromkeys(self._uploaded, msgspec.msgpack.encode(self.survivors))

    def finish(self) -> Elements:
        """Close the last step: the sum of the survivors' vectors."""
        self._close("recover", self._answers)
        light, who = self.light, sorted(self._answers)
        answers = np.stack([self._answers[i] for i in who])
        parts = gf.decode(answers, [light.places[i] for i in who], light.target - light.privacy)
        self.multiply_adds = parts.size * len(who)
        return gf.subtract(self._total, parts.ravel()[: light.size])

    @property
    def survivors(self) -> tuple[int, ...]:
        """Whose vectors are in the sum."""
        return tuple(sorted(self._uploaded))

    def _inbox(self, j: int) -> bytes:
        # Letters leave as they are packed: all shares of a round are the most that a server ever holds.
        return msgspec.msgpack.encode([(i, letters.pop(j)) for i, letters in self._letters.items() if i != j])

    def _close(self, step: str, took: Collection[int]) -> None:
        due, self._due = self._due, "nothing"
        refuse_if(due != step, f"{step} was closed when {due} is due: the session is over", Abort)
        least = self.light.target
        refuse_if(len(took) < least, f"{step}: {len(took)} users answered, {least} are needed", Abort)
        self._due = _after(step)


def _admit(who: int, allowed: Collection[int], already: Collection[int]) -> None:
    refuse_if(who not in allowed, f"party {who} has no part in this step", Abort)
    refuse_if(who in already, f"party {who} has answered already", Abort)
