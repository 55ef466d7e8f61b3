"""Keys are replaced while both are valid: a party's by a second line, a server's by a word of the key before it."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_network_runs import JOB, Federation

from atoll.crypto.keys import Identity, Refused
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.trust.roster import Roster, RosterFile, hinted, hints_of, key_text, line_of, new_key
from atoll.runtimes.network.trust.successor import FILE, announcement, remember, successors
from atoll.runtimes.network.trust.tls import PartyTLS, ServerTLS

pytest.importorskip("grpc")

TIMES = Times(patience=2.0, silence=3.0)


def test_a_name_may_have_two_keys_and_the_one_in_use_is_told(tmp_path: Path) -> None:
    one, two = (new_key(tmp_path / where, "north") for where in "ab")
    other = new_key(tmp_path, "south")
    path = tmp_path / "roster"
    path.write_text("".join(f"{line_of(member)}\n" for member in (one, other, two)))
    roster = Roster.load(path)
    assert roster.names == {one.identity.public: "north", two.identity.public: "north", other.identity.public: "south"}
    file = RosterFile(path)
    assert file.texts() == {"north": key_text(one.identity.public), "south": key_text(other.identity.public)}
    assert file.name_of(two.identity.public) == "north"
    assert file.texts()["north"] == key_text(two.identity.public)
    told = hinted(["south", "north"], hints_of(file.texts(), ["north", "south"]))
    assert roster.using(told) == {"north": two.identity.public, "south": other.identity.public}
    path.write_text(f"{line_of(one)}\n{line_of(other)}\n")
    assert file.name_of(two.identity.public) is None
    assert file.texts()["north"] == key_text(one.identity.public)


def test_a_server_cannot_make_a_party_trust_a_key_that_is_not_in_its_file(tmp_path: Path) -> None:
    north, mallory = new_key(tmp_path, "north"), new_key(tmp_path / "m", "north")
    path = tmp_path / "roster"
    path.write_text(f"{line_of(north)}\n")
    lie = hinted(["north"], hints_of({"north": key_text(mallory.identity.public)}, ["north"]))
    assert Roster.load(path).using(lie) == {"north": north.identity.public}


def test_a_third_key_of_a_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "roster"
    path.write_text("".join(f"{line_of(new_key(tmp_path / where, 'north'))}\n" for where in "abc"))
    with pytest.raises(Refused, match="roster:3: the name 'north' is there three times"):
        Roster.load(path)


def test_keys_are_announced_one_by_the_other(tmp_path: Path) -> None:
    first, second, third, stranger = (Identity.new() for _ in range(4))
    assert remember(first.public, tmp_path, announcement(first, second.public)) == second.public
    assert remember(first.public, tmp_path, announcement(first, second.public)) is None  # known
    assert remember(first.public, tmp_path, announcement(second, third.public)) == third.public
    assert successors(first.public, tmp_path) == (second.public, third.public)
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    for liar in (stranger, first):  # the key that was replaced has no say any more
        with pytest.raises(Refused, match="announces a key that its own key has not signed"):
            remember(first.public, tmp_path, announcement(liar, stranger.public))
    with (tmp_path / FILE).open("ab") as file:  # whoever writes to the file itself has signed nothing
        file.write(base64.b64encode(announcement(stranger, stranger.public)) + b"\nnot base64\n")
    assert successors(first.public, tmp_path) == (second.public, third.public)
    assert successors(stranger.public, tmp_path) == ()


def test_a_party_that_was_told_goes_on_with_the_new_key_and_another_does_not(federation: Any, tmp_path: Path) -> None:
    new = new_key(tmp_path / "next", "hub")
    old = ServerTLS(federation.hub, federation.roster, following=new.identity.public)
    federation.serve(side=old, times=TIMES)
    folders = [tmp_path / "told", tmp_path / "away"]
    for folder in folders:
        folder.mkdir()
    told, away = (
        federation.party(side=PartyTLS(federation.alice, federation.pin, folder), times=TIMES) for folder in folders
    )
    for party in (told, away):
        assert party.hello(b"hi") == b"alice: hi"
    assert told.told(old.successor)
    assert not told.told(old.successor)
    assert told.hello(b"still") == b"alice: still"
    address = federation.address
    federation.server.stop(0)
    federation.server = type(federation.server)(
        address, ServerTLS(new, federation.roster), federation.service, times=TIMES, folder=tmp_path
    )
    federation.server.start()
    assert told.hello(b"again") == b"alice: again"
    with pytest.raises(Refused, match="is not hub: its key is not"):
        away.hello(b"again")


@pytest.mark.nightly
def test_commands_follow_an_announced_key_and_no_other(tmp_path: Path) -> None:
    """A server announces its next key, is stopped and started under it; c was away, so to c it is a stranger's."""
    text = JOB.replace("[120, 120]", "[8]").replace("rounds = 4", "rounds = 4000").replace("epochs = 1", "epochs = 4")
    made = Federation(tmp_path, text)
    for name in ("next", "liar"):
        (tmp_path / name).mkdir()
        made.key("server", tmp_path / name)
    line = made.lines["server"]

    def rounds() -> int:
        return sum(fact["what"] == "round" for fact in made.facts())

    def restarted(server: subprocess.Popen[str], key: str, *more: str) -> subprocess.Popen[str]:
        server.terminate()
        assert server.wait(30) == 130
        (tmp_path / "server.key").write_bytes((tmp_path / key / "server.key").read_bytes())
        before = rounds()
        again = made.serve("--parties", "2", *more)
        made.until(lambda: rounds() > before + 2)
        return again

    try:
        server = made.serve("--parties", "2", "--next-key", "next/server.key")
        parties = {name: made.join(name) for name in "ab"}
        made.until(lambda: rounds() > 2)
        assert "announces a new key" in (tmp_path / "a.log").read_text()
        # Whoever has no old key signs nothing that counts; b and a go on with the one that was announced.
        server = restarted(server, "next")
        assert [party.poll() for party in parties.values()] == [None, None]
        assert line == made.lines["server"], "parties are still started with the old line"
        away = made.join("c")
        assert away.wait(90) == 4
        assert "is not server: its key is not" in (tmp_path / "c.log").read_text()
        parties["a"].terminate()
        assert parties["a"].wait(30) == 130
        parties["a"] = made.join("a")  # with the old line, and what its folder has of the new key
        made.until(lambda: (tmp_path / "a.log").read_text().count("who sees what") == 2)
        server.terminate()
        assert server.wait(30) == 130
        (tmp_path / "server.key").write_bytes((tmp_path / "liar" / "server.key").read_bytes())
        made.serve("--parties", "2")
        assert [party.wait(120) for party in parties.values()] == [4, 4], "a key that nobody announced"
    finally:
        made.close()
