"""What the network costs: a round's overhead, many parties, memory, a restart, throughput.

    python bench/rivals/environments.py flower          # once: Flower, in an environment of its own
    python bench/network.py [--only round flower …] [--repeat 3] [--quick]

Servers and parties are processes of `atoll serve` and `atoll join` on this machine, with mutual TLS over loopback. A
crowd is made of simulated parties: real connections, keys and messages, answers that are never trained. Linux only:
memory, files and threads are read from /proc. `--quick` runs everything small: it shows that the benchmark works, and
no figure worth quoting.
"""

import argparse
import ctypes
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from atoll.runtimes.network.messages.calls import TIMES, settings
from atoll.runtimes.network.messages.payload import chunks, header_of
from atoll.runtimes.network.transport import PartyTransport
from atoll.runtimes.network.trust.roster import line_of, load_key, new_key, peer_of
from atoll.runtimes.network.trust.tls import HOST, PartyTLS, anchor, grpc_library

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "rivals"))

from environments import python_of  # noqa: E402

Rows = Iterator[tuple[str, str, str]]  # what, measured, how
ATOLL = [sys.executable, "-c", "from atoll.cli import main; main()"]
ENDS = [sys.executable, str(HERE / "network_ends.py")]
SOFTMAX = '"softmax"'
SIX_MEGABYTES = '{ use = "mlp", hidden = [1220, 1150] }'  # 1,494,960 float32
GIGABYTES = 0.2  # of a party that trains
LIMIT = 1200.0  # seconds for anything that is waited for
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    repeat: int = 3
    few: int = 10  # parties of the round that is timed
    rounds: int = 20
    flower_rounds: int = 5
    many: int = 100  # parties that are processes
    crowd: int = 1000  # parties that are simulated
    crowd_rounds: int = 3
    hosts: int = 4  # processes that the crowd is spread over
    six: str = SIX_MEGABYTES
    body: int = 64 << 20
    settle: float = 5.0  # seconds after which a party that waits is at rest


QUICK = Scale(
    repeat=1, few=2, rounds=5, flower_rounds=1, many=2, crowd=20, crowd_rounds=2, hosts=1, body=8 << 20, settle=1.0
)


class Missing(Exception):
    """Something that a section needs is not there; the sentence says how to get it."""


# --- processes and what the system knows of them ---


def children(pid: int) -> list[int]:
    """The processes that this one has started and that are still there, and theirs."""
    with suppress(OSError):
        words = " ".join(task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")).split()
        return [found for word in words for found in (int(word), *children(int(word)))]
    return []


def runs(pid: int) -> bool:
    """Whether a process is there, and not just waiting to be counted."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def megabytes(pid: int, what: str) -> float:
    """A line of the system's account of a process: VmRSS, VmHWM (its peak) or Pss."""
    text = Path(f"/proc/{pid}/{'smaps_rollup' if what == 'Pss' else 'status'}").read_text()
    return int(re.search(rf"^{what}:\s+(\d+) kB", text, re.M)[1]) / 1000  # type: ignore[index]


def available() -> float:
    """Gigabytes that are free or can be freed."""
    return int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / 1e6  # type: ignore[index]


def files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


class Federation:
    """A folder with keys, a roster and a job, and processes that are all gone when it is closed."""

    def __init__(self, folder: Path, parties: int, rounds: int, model: str = SOFTMAX) -> None:
        self.folder, self.parties, self.address = folder, parties, "127.0.0.1:0"
        self.names = [f"p{k}" for k in range(parties)]
        self.processes: list[subprocess.Popen[str]] = []
        self.said: list[tuple[str, str, float]] = []  # by the crowd: what, who, when
        self.data = {"use": "digits", "clients": parties}
        (folder / "job.toml").write_text(
            f'name = "bench"\nrounds = {rounds}\neval_every = {rounds}\nselect = "all"\n'
            f'data = {{ use = "digits", clients = {parties} }}\n'
            f'method = {{ use = "fedavg", model = {model}, epochs = 1, batch = 10, lr = 0.1 }}\n'
        )
        self.server = line_of(new_key(folder, "server"))
        (folder / "roster").write_text("".join(f"{line_of(new_key(folder, name))}\n" for name in self.names))

    def start(self, command: list[str], log: str, **pipe: int) -> subprocess.Popen[str]:
        with (self.folder / log).open("a") as out:
            said = {"stdout": out, "stderr": out} | pipe
            process = subprocess.Popen(command, cwd=self.folder, text=True, **said)  # type: ignore[call-overload]
        self.processes.append(process)
        return process

    def serve(self) -> subprocess.Popen[str]:
        log = self.folder / "server.log"
        before = len(log.read_text()) if log.exists() else 0
        options = ["--roster", "roster", "--key", "server.key", "--run", "run", "--patience", f"{LIMIT:g}"]
        process = self.start([*ATOLL, "serve", "job.toml", *options, "--address", self.address], "server.log")
        self.until(lambda: "serving at" in log.read_text()[before:], process)
        self.address = re.search(r"serving at (\S+);", log.read_text()[before:])[1]  # type: ignore[index]
        return process

    def join(self, k: int) -> subprocess.Popen[str]:
        name = self.names[k]
        policy = f'allow_plain = true\ndata = {{ use = "digits", clients = {self.parties}, party = {k} }}\n'
        (self.folder / f"{name}.toml").write_text(policy)
        options = ["--key", f"{name}.key", "--policy", f"{name}.toml", "--folder", f"party-{name}"]
        return self.start([*ATOLL, "join", self.address, "--server", self.server, *options], f"{name}.log")

    def join_all(self, at_once: int = 4) -> list[subprocess.Popen[str]]:
        """Start every party, a few at a time."""
        parties = []
        for k in range(self.parties):
            parties.append(self.join(k))
            self.until(lambda k=k: k + 1 - len(self.joined()) < at_once, parties[-1])
        return parties

    def crowd(self, hosts: int) -> None:
        """Start simulated parties in a few processes."""
        for host in range(hosts):
            spec = {
                "address": self.address, "server": self.server, "folder": str(self.folder), "data": self.data,
                "names": self.names[host::hosts],
            }  # fmt: skip
            process = self.start([*ENDS, "crowd", json.dumps(spec)], "crowd.log", stdout=subprocess.PIPE)
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.said.append(tuple(json.loads(line)))

    def heard(self, what: str, since: float = 0.0) -> dict[str, float]:
        """Who of the crowd has said this, and when first."""
        found: dict[str, float] = {}
        for word, name, at in list(self.said):
            if word == what and at >= since:
                found.setdefault(name, at)
        return found

    def facts(self, what: str) -> list[dict]:
        file = self.folder / "run" / "facts.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [fact for fact in found if fact["what"] == what]

    def joined(self) -> set[str]:
        return {fact["party"] for fact in self.facts("joined")}

    def until(self, holds: Callable[[], object], process: subprocess.Popen[str]) -> None:
        """Wait for something to hold; a process that has failed is the end of waiting."""
        end = time.monotonic() + LIMIT
        while not holds():
            if process.poll() or time.monotonic() > end:
                logs = {log.name: log.read_text()[-1000:] for log in sorted(self.folder.glob("*.log"))[-3:]}
                raise RuntimeError(f"{process.args} did not get there: {logs}")
            time.sleep(0.02)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(20)
        until = time.monotonic() + 20  # what they have left behind became ours, see main
        while (left := children(os.getpid())) and time.monotonic() < until:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


@contextmanager
def federation(parties: int, rounds: int, model: str = SOFTMAX) -> Iterator[Federation]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Federation(Path(folder), parties, rounds, model)
        try:
            yield made
        finally:
            made.close()


def spread(seconds: list[float]) -> str:
    return f"{median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"


# --- sections ---


def served_rounds(parties: int, rounds: int) -> list[float]:
    """Seconds of each round between real processes, but for the first, in which models compile."""
    with federation(parties, rounds) as made:
        server = made.serve()
        made.join_all()
        if server.wait(LIMIT):
            raise RuntimeError((made.folder / "server.log").read_text()[-1000:])
        return np.diff([fact["time"] for fact in made.facts("round")])[1:].tolist()


def simulated_rounds(parties: int, rounds: int) -> list[float]:
    """Seconds of each round of the same job in a simulation: the training, and next to nothing else."""
    import atoll

    data = atoll.data.build({"use": "digits", "clients": parties}, 0)
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax(), 1, 10, 0.1), atoll.All(), rounds=rounds, eval_every=rounds)
    ends: list[float] = []
    sink = lambda note: ends.append(time.perf_counter()) if note.what == "round" else None  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        atoll.simulate(job, data, out=folder, sinks=(sink,))
    return np.diff(ends)[1:].tolist()


def of_round(scale: Scale) -> Rows:
    n, rounds = scale.few, scale.rounds
    plain = [s for _ in range(scale.repeat) for s in simulated_rounds(n, rounds)]
    turns = [served_rounds(n, rounds) for _ in range(scale.repeat)]
    seconds = [s for turn in turns for s in turn]
    medians = ", ".join(f"{median(turn):.3f}" for turn in turns)
    how = f"{len(turns)} runs of {rounds} rounds, medians {medians}; {n} trainers share {os.cpu_count()} cores"
    yield f"a round of {n} parties, softmax on digits, served", spread(seconds), how
    over = median(seconds) - median(plain)
    yield "beyond the round of a simulation", f"{over:.3f} s", f"simulated {median(plain):.4f} s"


def of_flower(scale: Scale) -> Rows:
    n, python = scale.few, python_of("flower")
    if python is None:
        raise Missing("not installed: python bench/rivals/environments.py flower")
    script, ours, theirs = HERE / "rivals" / "run_flower_deployed.py", [], []
    words = ["--parties", str(n), "--rounds", str(1 + scale.flower_rounds), "--size", "650"]
    for _ in range(scale.repeat):
        ours += served_rounds(n, scale.rounds)
        done = subprocess.run([str(python), str(script), *words], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise Missing(f"{script.name} ended with code {done.returncode}: what it says is above")
        record = json.loads(done.stdout.splitlines()[-1])
        theirs += record["rounds"]
    yield f"Atoll, {n} parties, mutual TLS, trained", spread(ours), f"{len(ours)} rounds"
    how = f"{len(theirs)} rounds; the first after {record['startup']:.0f} s"
    yield f"Flower {record['version']}, {n} SuperNodes, no TLS, nothing trained", spread(theirs), how
    yield "Flower / Atoll", f"{median(theirs) / median(ours):.0f} ×", "medians of all rounds"


def of_parties(scale: Scale) -> Rows:
    n, rounds, before, began = scale.many, scale.rounds, available(), time.monotonic()
    if before < 1 + GIGABYTES * n:
        raise Missing(f"{n} parties that train need about {1 + GIGABYTES * n:.0f} GB, {before:.0f} are free")
    with federation(n, rounds) as made:
        server = made.serve()
        parties = made.join_all()
        all_in = time.monotonic() - began
        tree = [pid for party in parties for pid in (party.pid, *children(party.pid))]
        seen: list[tuple[int, float, int, int]] = []  # rounds done, and the server's memory, files, threads then
        used = 0.0
        while server.poll() is None:
            done = len(made.facts("round"))
            if done > len(seen):
                used = max(used, before - available())
                with suppress(OSError):  # it may end meanwhile
                    seen.append((done, megabytes(server.pid, "VmRSS"), files(server.pid), threads(server.pid)))
                    tree = [pid for party in parties for pid in (party.pid, *children(party.pid))] or tree
            time.sleep(0.01)
        codes = {party.wait(LIMIT) for party in parties} | {server.returncode}
        time.sleep(1.0)
        left = [pid for pid in tree if runs(pid)]
        facts = made.facts("round")
    what = f"{n} party processes × {rounds} rounds"
    yield what, f"exit codes {sorted(codes)}", f"all there after {all_in:.0f} s, {used:.1f} GB in use"
    rest = np.diff([fact["time"] for fact in facts]).tolist()
    how = f"without the first ({facts[0]['seconds']:.0f} s, in which every party compiles)"
    yield f"{what}: a round", spread(rest), how
    steady = np.array(seen[len(seen) // 4 :], float)
    slope = float(np.polyfit(steady[:, 0], steady[:, 1], 1)[0])
    how = f"least squares over rounds {steady[0, 0]:.0f} to {steady[-1, 0]:.0f}; {steady[-1, 1]:.0f} MB at the end"
    yield f"{what}: the server's memory", f"{1000 * slope:+.0f} kB a round", how
    fds, running = steady[:, 2].astype(int), steady[:, 3].astype(int)
    yield f"{what}: the server's open files", f"{fds[0]} then {fds[-1]}", f"{min(fds)} to {max(fds)}"
    yield f"{what}: the server's threads", f"{running[0]} then {running[-1]}", f"up to {max(running)}"
    yield f"{what}: processes left", str(len(left)), f"of {len(tree)}, a second after the end"


def of_memory(scale: Scale) -> Rows:
    n, rounds = scale.crowd, scale.crowd_rounds
    with federation(n, rounds, scale.six) as made:
        server, began = made.serve(), time.monotonic()
        made.crowd(scale.hosts)
        made.until(lambda: len(made.heard("joined")) == n, server)
        came, rest, peak = time.monotonic() - began, megabytes(server.pid, "VmRSS"), 0.0
        while server.poll() is None:
            with suppress(OSError, TypeError):  # it may end meanwhile
                peak = max(peak, megabytes(server.pid, "VmHWM"))
            time.sleep(0.1)
        facts, rejected = made.facts("round"), made.facts("rejected")
        if server.returncode or rejected:
            raise RuntimeError(f"{rejected[:1]} {(made.folder / 'server.log').read_text()[-1000:]}")
    answered = [fact["answered"] for fact in facts]
    size = facts[0]["bytes_up"] / facts[0]["answered"] / 1e6
    what = f"{n:,} simulated parties × {size:.1f} MB × {rounds} rounds"
    how = f"peak of the server's process; {rest:.0f} MB with all there; answers a round {answered}"
    yield f"{what}: memory", f"{peak / 1000:.2f} GB", how
    seconds = [fact["seconds"] for fact in facts]
    rate = median(2 * n * size / s for s in seconds)
    yield f"{what}: a round", spread(seconds), f"{rate:,.0f} MB/s down and up; all had come after {came:.0f} s"


def of_restart(scale: Scale) -> Rows:
    n, turns = scale.crowd, []
    with federation(n, 100_000) as made:
        server = made.serve()
        made.crowd(scale.hosts)
        for turn in range(1 + scale.repeat):
            before = len(made.facts("round"))
            made.until(lambda before=before: len(made.facts("round")) > before, server)
            if turn == scale.repeat:
                break
            server.kill()
            server.wait(20)
            died = time.monotonic()
            server = made.serve()
            listens = time.monotonic()
            made.until(lambda died=died: len(made.heard("joined", died)) == n, server)
            turns.append([at - listens for at in made.heard("joined", died).values()])
    times = [max(turn) for turn in turns]
    how = (
        f"half of them after {median(median(turn) for turn in turns):.1f} s; {len(turns)} kills in the middle of a run"
    )
    yield f"{n:,} parties are back after the server listens again", spread(times), how


def of_idle(scale: Scale) -> Rows:
    n = scale.repeat
    with federation(n + 1, 1) as made:
        made.serve()
        parties = [made.join(k) for k in range(n)]
        made.until(lambda: len(made.joined()) == n, parties[-1])
        time.sleep(scale.settle)
        alone = [(megabytes(p.pid, "VmRSS"), megabytes(p.pid, "Pss")) for p in parties]
        under = [[(megabytes(c, "VmRSS"), megabytes(c, "Pss")) for c in children(p.pid)] for p in parties]
    rss, pss = (median(party[k] for party in alone) for k in (0, 1))
    yield "a joined party that waits", f"{rss:.0f} MB", f"resident; {pss:.0f} MB with shared pages divided"
    whole = [[sum(c[k] for c in below) + own[k] for own, below in zip(alone, under, strict=True)] for k in (0, 1)]
    how = f"{median(whole[1]):.0f} MB with shared pages divided; {len(under[0])} child processes"
    yield "the same with its children", f"{median(whole[0]):.0f} MB", how


@contextmanager
def lines(body: bytes) -> Iterator[dict[str, dict[str, Callable[[], object]]]]:
    """Ways to push a body to a server in another process and to pull one of its size: Atoll's, and bare streams."""
    grpc = grpc_library()
    with federation(1, 1) as made:
        side, spec = PartyTLS(load_key(made.folder / "p0.key"), peer_of(made.server)), {"size": len(body)}
        spec |= {"folder": str(made.folder)}
        both = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        served = made.start([*ENDS, "pipes", json.dumps(spec)], "pipes.log", **both)
        assert served.stdout
        ports = {name: f"127.0.0.1:{port}" for name, port in json.loads(served.stdout.readline()).items()}
        options, trusted = settings(TIMES), grpc.ssl_channel_credentials(anchor(side.server.key))
        named = [*options, ("grpc.ssl_target_name_override", HOST)]
        bare = {
            "mutual TLS": side.channel(ports["mutual TLS"], options),
            "TLS": grpc.secure_channel(ports["TLS"], trusted, named),
            "no TLS": grpc.insecure_channel(ports["no TLS"], options),
        }
        line, header = PartyTransport(ports["transport"], side, folder=made.folder), header_of("answer", "pipe", body)

        def pull() -> None:
            payload = line.pull()
            assert payload
            payload.body.close()

        def bare_ways(channel: Any) -> dict[str, Callable[[], object]]:
            push, pull = channel.stream_unary("/bare/Push"), channel.unary_stream("/bare/Pull")
            return {"push": lambda: push(chunks(body)), "pull": lambda: sum(map(len, pull(b"")))}

        yield {"Atoll": {"push": lambda: line.push(header, body), "pull": pull}} | {
            name: bare_ways(channel) for name, channel in bare.items()
        }
        for end in (line, *bare.values()):
            end.close()


def of_throughput(scale: Scale) -> Rows:
    body, turns = os.urandom(scale.body), 5 * scale.repeat
    rates: dict[tuple[str, str], list[float]] = {}
    with lines(body) as ways:
        for turn in range(1 + turns):
            for name, both in ways.items():
                for verb, once in both.items():
                    began = time.perf_counter()
                    once()
                    if turn:  # in the first they connect
                        rates.setdefault((verb, name), []).append(len(body) / 1e6 / (time.perf_counter() - began))
    size = f"{len(body) >> 20} MB"
    for verb in ("push", "pull"):
        mine, bare = rates[verb, "Atoll"], {name: rates[verb, name] for name in ways if name != "Atoll"}
        for name, found in bare.items():
            how = f"{min(found):.0f} to {max(found):.0f}, {turns} turns"
            yield f"{verb} {size}, bare gRPC, {name}", f"{median(found):.0f} MB/s", how
        how = f"{min(mine):.0f} to {max(mine):.0f}; checked and hashed at both ends"
        yield f"{verb} {size}, Atoll", f"{median(mine):.0f} MB/s", how
        for name, found in bare.items():
            parts = [a / b for a, b in zip(mine, found, strict=True)]
            yield f"{verb} {size}, Atoll / {name}", f"{median(parts):.2f}", f"{min(parts):.2f} to {max(parts):.2f}"


SECTIONS = {name: globals()[f"of_{name}"] for name in
            ("idle", "throughput", "round", "flower", "parties", "memory", "restart")}  # fmt: skip


def machine() -> str:
    chip = (re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.machine()])[0]
    load = f"load {os.getloadavg()[0]:.1f} at the start"
    return f"{os.cpu_count()} cores, {chip}, Python {platform.python_version()}, {load}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    # A process whose parent has died becomes a child of this one: it can be counted and ended.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and what was started is ended
    scale = QUICK if given.quick else Scale()
    scale = replace(scale, repeat=given.repeat or scale.repeat)
    print(f"{machine()}\n\n| what | measured | how |\n|---|---|---|", flush=True)
    for name in given.only:
        try:
            for row in SECTIONS[name](scale):
                print(f"| {' | '.join(row)} |", flush=True)
        except Missing as why:
            print(f"| {name} | | | {why} |", flush=True)


if __name__ == "__main__":
    main()
