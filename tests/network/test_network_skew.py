"""Versions that follow each other speak to each other: a party or a server of the next release in a real run."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from cast import Cast, parameters, simulated, take_part

import spawn
from atoll.core.question import Layout
from atoll.data.schema import TableSchema

pytest.importorskip("grpc")

RECIPE = '{ use = "digits", clients = 2 }'
JOB = f"""
name = "skew"
rounds = 2
data = {RECIPE}
method = {{ use = "fedavg", model = "softmax" }}
select = "all"
"""


def become_next() -> None:
    """Be the next release, in a process of its own: another version, and a hello with one more field."""
    import msgspec

    from atoll.runtimes.network.messages import envelope as wire

    class Hello(wire.Envelope, frozen=True, tag="hello"):
        name: str
        samples: int
        data: Layout
        edge: bool = False
        columns: TableSchema | None = None
        place: bytes = b""
        mood: str = "fine"
        version: int = 4

    Hello.since = {"mood": 4}
    wire.PROTOCOL = 4
    wire.MOST_BYTES[Hello] = wire.MOST_BYTES[wire.Hello]
    wire._decoders[Hello] = msgspec.msgpack.Decoder(Hello)
    wire.Hello = Hello  # type: ignore[assignment,misc]


def join_next(*args: str | bool) -> None:
    become_next()
    take_part(*args)  # type: ignore[arg-type]


def serve_next(folder: str) -> None:
    """Serve in a process of its own, as the next release would."""
    become_next()
    from atoll.core.world import World
    from atoll.data import build
    from atoll.job.file import parse
    from atoll.runtimes.network.server.serve import serve
    from atoll.runtimes.network.trust.roster import RosterFile, load_key
    from atoll.runtimes.network.trust.tls import ServerTLS

    here, said = Path(folder), parse(JOB, "the test")
    file = RosterFile(here / "roster")
    serve(
        said.job, build(said.data, said.seed), said.seed, address="127.0.0.1:0",
        credentials=ServerTLS(load_key(here / "server.key"), file), roster=file.texts,
        folder=here / "run", world=World.rehearsed, ready=lambda at: (here / "address").write_text(at) and None,
    )  # fmt: skip


@pytest.mark.nightly
def test_a_party_of_the_next_release_takes_part(tmp_path: Path) -> None:
    from atoll.runtimes.network.trust.roster import line_of

    cast = Cast(tmp_path, ("a", "b"))
    address = cast.open(JOB)
    cast.join(address, "a", cast.policy("a", RECIPE))
    args = (address, str(tmp_path), "b", line_of(cast.server), cast.policy("b", RECIPE), True)
    cast.processes["b"] = spawn.process(join_next, *args)
    assert np.array_equal(parameters(cast.close(120).params), simulated(JOB))


@pytest.mark.nightly
def test_a_server_of_the_next_release_is_joined(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    cast = Cast(tmp_path, ("a", "b"))
    server = spawn.process(serve_next, str(tmp_path))
    end = time.monotonic() + 60
    while not (tmp_path / "address").is_file() or not (tmp_path / "address").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    for name in cast.names:
        cast.join((tmp_path / "address").read_text(), name, cast.policy(name, RECIPE))
    server.join(120)
    assert server.exitcode == 0, {name: cast.log(name)[-1500:] for name in cast.names}
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert np.isclose(np.concatenate([found[name].ravel() for name in sorted(found)]), simulated(JOB)).all()
