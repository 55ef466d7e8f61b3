"""Everything that parties must agree in is in everything that they derive: change one thing, and all of it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import pytest

import atoll
from atoll.combine.protocol import fingerprint
from atoll.core.wire import Event, Member, Setting, Wire, chain
from atoll.core.world import World
from atoll.crypto import holders, light
from atoll.crypto.holders import SignedKey
from atoll.crypto.keys import KEY, PROTOCOL, Pair, Refused, agree, derive, open_sealed, packed, seal
from atoll.crypto.secagg import SecurePlan, messages
from atoll.crypto.secagg.client import mask_key, share_key
from atoll.crypto.secagg.messages import Advert
from atoll.crypto.terms import Terms, context

SECRET, PAIR, OTHER = bytes(range(KEY)), Pair.of(b"a" * KEY), Pair.of(b"b" * KEY)
MEMBERS = {who: Member(f"party {who}", bytes([who + 1]) * KEY) for who in range(8)}
WIRE = chain(atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring())(Wire.of(40, 6))[0]
assert WIRE.ring is not None


@dataclass(frozen=True)
class Told:
    """All that the parties of one sum agree in."""

    job: bytes = b"job"
    phase: str = "model"
    wire: Wire = WIRE
    members: Mapping[int, Member] = field(default_factory=lambda: MEMBERS)
    cohort: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    session: bytes = bytes(16)
    t: int = 2
    model: bytes = bytes(KEY)
    secure: atoll.SecureSum = field(default_factory=atoll.SecureSum)
    light: atoll.LightSum = field(default_factory=atoll.LightSum)
    encrypted: atoll.EncryptedSum = field(default_factory=lambda: atoll.EncryptedSum(key_holders=2))

    def terms(self, combine: str) -> Terms:
        setting = Setting(self.phase, World.real(0), self.job, lambda: self.members)
        how = getattr(self, combine)
        agreed = how.rules(self.wire, setting).agreed if combine == "encrypted" else how.agreed(self.wire, setting)
        return agreed.terms(self.session, self.t, self.cohort, self.model)


def plan_of(told: Told) -> SecurePlan:
    return SecurePlan(told.terms("secure"), 5, 0, 32, 23, 40)


def light_of(told: Told) -> light.Light:
    roster = {who: told.members[who].key for who in told.cohort}
    return light.Light(roster, 2, 4, 40, told.session, told.t, told.terms("light").digest)


def secure_values(plan: SecurePlan) -> dict[str, bytes]:
    """What parties of a secure sum make of it, with the same secrets."""
    return {
        "mask": mask_key(plan, SECRET, 0, 1), "own mask": mask_key(plan, SECRET, 0, 0),
        "letters": share_key(plan, SECRET, 0, 1), "advert": messages.advert_statement(plan, 0, b"c", b"s", b"p"),
        "survivors": messages.survivors_statement(plan, b"adverts", [0, 1]),
        "promise": messages.commit(plan, 0, SECRET),
    }  # fmt: skip


def light_values(about: light.Light) -> dict[str, bytes]:
    return {
        "mask": light._mask_key(about, SECRET, 0), "letters": light._letter_key(about, SECRET, 0, 1),
        "advert": about.statement(0, b"key"),
    }  # fmt: skip


def encrypted_values(terms: Terms) -> dict[str, bytes]:
    return {
        "key": SignedKey(terms, b"public", PAIR.public, b"").statement((0, 1)),
        "advert": holders.advert_statement(terms, 1, PAIR.public),
        "share": holders._share_key(PAIR, OTHER.public, terms, 0, 1),
    }  # fmt: skip


def values(told: Told) -> dict[str, bytes]:
    found = {
        "secure": secure_values(plan_of(told)), "light": light_values(light_of(told)),
        "encrypted": encrypted_values(told.terms("encrypted")),
    }  # fmt: skip
    return {f"{kind} {name}": value for kind, made in found.items() for name, value in made.items()}


def ring(**other: Any) -> Told:
    assert WIRE.ring is not None
    return Told(wire=replace(WIRE, ring=replace(WIRE.ring, **other)))


NOISY = replace(WIRE, noise=(Event("distributed", 0.5),))
EVERYWHERE = {
    "job": Told(job=b"another"), "phase": Told(phase="another"), "session": Told(session=b"1" * 16),
    "round": Told(t=3), "model": Told(model=b"1" * KEY), "cohort": Told(cohort=(0, 1, 2, 3, 4)),
    "another cohort": Told(cohort=(0, 1, 2, 3, 4, 6)), "modulus": ring(modulus=2**64),
    "value": ring(value_bound=9.0), "sum": ring(sum_bound=9e6), "noise": Told(wire=NOISY),
    "name": Told(members={**MEMBERS, 1: Member("somebody", MEMBERS[1].key)}),
    "key": Told(members={**MEMBERS, 1: Member("party 1", b"x" * KEY)}),
    "numbers": Told(members={**MEMBERS, 1: MEMBERS[2], 2: MEMBERS[1]}),
    "size": Told(wire=replace(WIRE, row=replace(WIRE.row, size=41))),
    "dtype": Told(wire=replace(WIRE, row=replace(WIRE.row, dtype="uint64"))),
    "fewest": Told(wire=replace(WIRE, total=replace(WIRE.total, min_cohort=4))),
}  # fmt: skip
WAYS = {
    "secure": [atoll.SecureSum(threshold=0.7), atoll.SecureSum(min_parties=4), atoll.SecureSum(sparse=True)],
    "light": [atoll.LightSum(privacy=0.35), atoll.LightSum(target=0.8)],
    "encrypted": [
        atoll.EncryptedSum(), atoll.EncryptedSum(key_holders=3), atoll.EncryptedSum(key_holders=2, bits=3072),
        atoll.EncryptedSum("ckks"),
    ],
}  # fmt: skip


def all_differ(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> None:
    assert one.keys() == other.keys()
    assert not [name for name in one if one[name] == other[name]]


@pytest.mark.parametrize("what", EVERYWHERE)
def test_what_was_agreed_is_in_everything(what: str) -> None:
    all_differ(values(Told()), values(EVERYWHERE[what]))


def test_terms_and_context_hold_each_of_their_values() -> None:
    """Also those that others of them imply."""
    terms = Told().terms("secure")
    other = Terms(b"1" * 16, 3, (0, 1), b"1" * KEY, b"1" * KEY)
    for name in ("session", "t", "cohort", "model", "context"):
        assert msgspec.structs.replace(terms, **{name: getattr(other, name)}).digest != terms.digest
    among = {who: MEMBERS[who] for who in (0, 1, 2, 3)}
    fields: tuple[Any, ...] = (b"job", "model", b"how", b"vector", (1, 2, 3), among)
    changed = (b"other", "other", b"other", b"other", (0, 1, 2), {1: among[0], 0: among[1], 2: among[2], 3: among[3]},
               {**{who: among[who] for who in (0, 1, 2)}, 4: among[3]})  # fmt: skip
    for k, value in enumerate(changed):
        at = min(k, len(fields) - 1)
        assert context(*fields[:at], value, *fields[at + 1 :]) != context(*fields)


@pytest.mark.parametrize("event", [Event("local", 0.5), Event("distributed", 0.25)])
def test_how_much_noise_is_in_everything(event: Event) -> None:
    all_differ(values(Told(wire=NOISY)), values(Told(wire=replace(WIRE, noise=(event,)))))


@pytest.mark.parametrize("kind", WAYS)
def test_the_way_of_hiding_is_in_everything(kind: str) -> None:
    told = [Told(), *(replace(Told(), **{kind: way}) for way in WAYS[kind])]
    assert len({one.terms(kind).digest for one in told}) == len(told)


@pytest.mark.parametrize("other", [{"threshold": 6}, {"neighbours": 4}, {"width": 64}, {"bits": 24}, {"size": 41}])
def test_a_plan_is_in_everything(other: dict[str, int]) -> None:
    plan = plan_of(Told())
    fields = {name: getattr(plan, name) for name in ("terms", "threshold", "neighbours", "width", "bits", "size")}
    all_differ(secure_values(plan), secure_values(SecurePlan(**{**fields, **other})))


FIVE = {who: MEMBERS[who].key for who in range(5)}


@pytest.mark.parametrize("other", [{"privacy": 1}, {"target": 5}, {"size": 41}, {"session": b"1"}, {"round_no": 3},
                                   {"roster": {**FIVE, 6: MEMBERS[5].key}},
                                   {"roster": {**FIVE, 5: MEMBERS[6].key}}])  # fmt: skip
def test_a_light_round_is_in_everything(other: dict[str, Any]) -> None:
    about = light_of(Told())
    all_differ(light_values(about), light_values(replace(about, **other)))


PLAN, ABOUT, TERMS = plan_of(Told()), light_of(Told()), Told().terms("encrypted")
CALLS: list[tuple[Callable[..., bytes], tuple[Any, ...]]] = [
    (messages.advert_statement, (PLAN, 0, b"c", b"s", b"p")), (messages.survivors_statement, (PLAN, b"a", [0, 1])),
    (messages.commit, (PLAN, 0, SECRET)), (lambda *fields: messages.adverts_digest([Advert(*fields, b"")]),
                                           (1, b"c" * KEY, b"s" * KEY, b"p" * KEY)),
    (mask_key, (PLAN, SECRET, 0, 2)), (share_key, (PLAN, SECRET, 0, 2)),
    (ABOUT.statement, (0, b"key")), (light._mask_key, (ABOUT, SECRET, 0)), (light._letter_key, (ABOUT, SECRET, 0, 2)),
    (holders.advert_statement, (TERMS, 1, b"key")), (lambda p, d, h: SignedKey(TERMS, p, d, b"").statement(h),
                                                     (b"public", b"dealer", [0, 1])),
    (lambda purpose, context, i, j: derive(SECRET, purpose=purpose, context=context, i=i, j=j),
     ("mask", b"terms", 0, 2)),
]  # fmt: skip


def another(value: Any) -> Any:
    """A value like this one, and not the same."""
    if isinstance(value, bytes):
        return value[1:] + b"!"
    if isinstance(value, str):
        return value + "!"
    if isinstance(value, list):
        return [*value, 7]
    return value + 1 if isinstance(value, int) else None


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_every_argument_is_in_what_is_signed_and_derived(call: int) -> None:
    make, given = CALLS[call]
    for k, value in enumerate(given):
        if another(value) is not None:  # plans and terms are varied above
            assert make(*given) != make(*given[:k], another(value), *given[k + 1 :]), f"argument {k}"


def test_both_keys_are_in_what_two_agree_on() -> None:
    """X25519 alone gives one secret to several keys: those that differ in a bit that it does not look at."""
    twin = OTHER.public[:-1] + bytes([OTHER.public[-1] ^ 0x80])
    assert PAIR.exchange(twin) == PAIR.exchange(OTHER.public)
    assert agree(PAIR, OTHER.public) == agree(OTHER, PAIR.public)
    assert agree(PAIR, twin) != agree(PAIR, OTHER.public)
    known_to_all = packed(PROTOCOL, "agree", *sorted((PAIR.public, OTHER.public)))
    assert agree(PAIR, OTHER.public) != sha256(known_to_all).digest()


@pytest.mark.parametrize("other", [{"context": b"other"}, {"i": 1}, {"j": 1}])
def test_a_sealed_text_is_opened_where_it_was_sealed_for(other: dict[str, Any]) -> None:
    given: dict[str, Any] = {"context": b"terms", "i": 0, "j": 2}
    box = seal(SECRET, b"text", **given)
    assert open_sealed(SECRET, box, **given) == b"text"
    with pytest.raises(Refused, match="changed on its way"):
        open_sealed(SECRET, box, **{**given, **other})


def test_a_question_is_known_by_all_of_it() -> None:
    asked = {"a": np.arange(4.0), "b": None}
    others = [
        {"a": np.arange(4.0), "c": None}, {"a": np.arange(4.0).reshape(2, 2), "b": None},
        {"a": np.arange(1, 5.0), "b": None},
        {"a": np.arange(4.0).view(np.int64), "b": None}, {"a": np.arange(4.0), "b": ""}, {"a": np.arange(4.0)},
    ]  # fmt: skip
    assert len({fingerprint(question) for question in (asked, *others)}) == len(others) + 1


def test_fields_do_not_run_into_each_other() -> None:
    assert packed(b"ab", b"c") != packed(b"a", b"bc") != packed(b"abc")
