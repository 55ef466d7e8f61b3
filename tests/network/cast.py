"""A whole federation for one test, as library calls: a server in a thread, each party a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import atoll
import spawn
from atoll.core.tree import leaves
from atoll.core.world import World
from atoll.job.file import parse


def parameters(tree: Mapping[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf)) for _, leaf in leaves(tree)])


def simulated(job: str) -> np.ndarray:
    from atoll.data import build

    said = parse(job, "the test")
    return parameters(atoll.simulate(said.job, build(said.data, said.seed), said.seed).params)


def take_part(address: str, folder: str, name: str, server: str, policy: str, repeats: bool) -> None:
    """Join, in a process of its own."""
    import sys

    from atoll.runtimes.network.party.join import join
    from atoll.runtimes.network.party.policy import Policy
    from atoll.runtimes.network.trust.roster import load_key, peer_of
    from atoll.runtimes.network.trust.tls import PartyTLS

    log = (Path(folder) / f"{name}.log").open("a", buffering=1)
    sys.stderr = log
    credentials = PartyTLS(load_key(Path(folder) / f"{name}.key"), peer_of(server))
    why = join(address, credentials, name, Policy.parse(policy, "the test's policy"), Path(folder) / name,
               server=server, world=World.rehearsed if repeats else World.real,
               say=lambda text: print(text, file=log))  # fmt: skip
    print(f"ended: {why}", file=log)


@dataclass
class Cast:
    """Keys, a roster, policies; `play` serves a job to all of them and returns what came of it."""

    folder: Path
    names: Sequence[str]
    repeats: bool = True  # noise and rounding by address: only so can a served run equal a simulated one
    processes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from atoll.runtimes.network.trust.roster import line_of, new_key

        self.server = new_key(self.folder, "server")
        lines = [line_of(new_key(self.folder, name)) for name in self.names]
        self.roster = self.folder / "roster"
        self.roster.write_text("".join(f"{line}\n" for line in lines))
        self.found: dict[str, Any] = {}

    def policy(self, name: str, recipe: str) -> str:
        mine = f"{recipe.rstrip()[:-1].rstrip()}, party = {list(self.names).index(name)} }}"
        allow = "".join(f"allow_{what} = true\n" for what in ("plain", "semi_honest", "metrics"))
        return f'{allow}roster = "{self.roster}"\ndata = {mine}\n'

    def join(self, address: str, name: str, policy: str) -> Any:
        from atoll.runtimes.network.trust.roster import line_of

        args = (address, str(self.folder), name, line_of(self.server), policy, self.repeats)
        process = spawn.process(take_part, *args)
        self.processes[name] = process
        return process

    def play(self, job: str, recipe: str, within: float = 300.0, **settings: Any) -> Any:
        """Serve a job text until it has ended."""
        self.begin(job, recipe, **settings)
        return self.close(within)

    def begin(self, job: str, recipe: str, **settings: Any) -> str:
        """Serve a job text, with all parties on their way; return the address."""
        address = self.open(job, **settings)
        for name in self.names:
            self.join(address, name, self.policy(name, recipe))
        return address

    def until(self, rounds: int, within: float = 240.0) -> None:
        """Wait until so many rounds are done."""
        journal, end = self.folder / "run" / "facts.jsonl", time.monotonic() + within
        while not journal.is_file() or journal.read_text().count('"what": "round"') < rounds:
            assert time.monotonic() < end, {name: self.log(name)[-1000:] for name in self.names}
            time.sleep(0.02)

    def open(self, job: str, **settings: Any) -> str:
        from atoll.data import build
        from atoll.runtimes.network.server.serve import serve
        from atoll.runtimes.network.trust.roster import RosterFile
        from atoll.runtimes.network.trust.tls import ServerTLS

        said, file, ready = parse(job, "the test"), RosterFile(self.roster), threading.Event()

        def listening(address: str) -> None:
            self.found["address"] = address
            ready.set()

        def run() -> None:
            try:
                self.found["served"] = serve(
                    said.job, build(said.data, said.seed), said.seed, address="127.0.0.1:0",
                    credentials=ServerTLS(self.server, file),
                    roster=file.texts,
                    folder=self.folder / "run", world=World.rehearsed if self.repeats else World.real,
                    ready=listening, **settings,
                )  # fmt: skip
            except BaseException as error:
                self.found["error"] = error
                ready.set()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        assert ready.wait(60)
        if "error" in self.found:
            raise self.found["error"]
        return str(self.found["address"])

    def close(self, within: float) -> Any:
        self.thread.join(within)
        logs = {name: (self.folder / f"{name}.log").read_text()[-1500:] for name in self.processes
                if (self.folder / f"{name}.log").is_file()}  # fmt: skip
        assert not self.thread.is_alive(), logs
        for process in self.processes.values():
            process.join(30)
        if "error" in self.found:
            raise self.found["error"]
        return self.found["served"].run

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join(10)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()
