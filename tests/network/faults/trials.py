"""Faults against runs of three parties, and what came of each: what the tests of faults and their table share.

A try ends in one of three ways. The run finishes, and its model and its facts are those of a run that nobody disturbed.
Or it says in a sentence why it cannot go on, and after what the sentence asks for it finishes so. Or it is something
else: then the try says what.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
from cluster import ATOLL, Cluster, Facts, children, family, job, whole
from proxy import Proxy

from atoll.core.errors import AtollError
from atoll.journal import read
from atoll.runtimes.folder import open_run
from damage import flip

EQUAL, SENTENCE = "equal bits", "a sentence, then equal bits"
QUORUM = "min_parties = 3\n"  # a round with fewer is no round of the run that nobody disturbs: it waits
Say = Callable[[str], None]


class Try(NamedTuple):
    """One fault, and how the run ended: EQUAL, SENTENCE, or what was wrong."""

    fault: str
    end: str

    @property
    def is_wrong(self) -> bool:
        return self.end not in (EQUAL, SENTENCE)


def must(holds: object, otherwise: object) -> None:
    if not holds:
        raise AssertionError(otherwise)


def true(federation: Cluster, parties: Sequence[subprocess.Popen[str]] = (), lost: int = 0) -> None:
    """Hold a run that has finished against one that nobody disturbed; of its facts so many may be lost, none wrong."""
    text = (federation.folder / "job.toml").read_text()
    right = whole(text, federation.parties)
    must(federation.finished(), "the run has not finished")
    must(federation.model() == right.model, "the model has other bits")
    told = federation.told()
    must(is_among(told, right.facts), "the facts say something that was not so")
    must(len(told) >= len(right.facts) - lost, f"{len(right.facts) - len(told)} facts are missing")
    must([party.wait(180) for party in parties] == [0] * len(parties), "a party ended otherwise")
    for log in federation.folder.glob("*.log"):
        must("Traceback" not in (said := log.read_text()), f"{log.name}: {said[-500:]}")


def is_among(some: Facts, all_: Facts) -> bool:
    """Whether nothing is in `some` that is not in `all_`, in its order."""
    rest = iter(all_)
    return all(any(fact == other for other in rest) for fact in some)


def outcome(work: Callable[[], str | None]) -> str:
    """Say how a try ended whose work says EQUAL (or nothing) or SENTENCE, and raises where something is wrong."""
    try:
        return work() or EQUAL
    except (AssertionError, AtollError, OSError, subprocess.SubprocessError, psutil.Error) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"


def sentence(federation: Cluster, who: str, process: subprocess.Popen[str], since: int = 0) -> str:
    """The one sentence that a process ended with."""
    code, said = process.wait(10), federation.said(who)[since:]
    found = [line for line in said.splitlines() if line.startswith("atoll: ")]
    must(code in (2, 3), f"{who} ended with {code}: {said[-500:]}")
    must(len(found) == 1, f"{who} said {found}")
    return found[0]


# --- kills ------------------------------------------------------------------------------------------------------------

EVENTS = {"create": 0x100, "written": 0x8, "renamed": 0x80, "removed": 0x200}  # of inotify
MOMENTS = ("clock", "clock", "write", "write", "start")
IN_A_RUN = 20  # kills
LONG = 200  # rounds, so that so many kills fall into a run


@contextmanager
def watched(folder: Path, event: str) -> Iterator[Callable[[float], bool]]:
    """Tell as soon as the kernel does that something happens to a file of a folder; gives False where nothing does."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    try:
        must(libc.inotify_add_watch(fd, os.fsencode(folder), EVENTS[event]) >= 0, os.strerror(ctypes.get_errno()))

        def wait(seconds: float) -> bool:
            there, _, _ = select.select([fd], [], [], seconds)
            return bool(there) and len(os.read(fd, 1 << 16)) >= struct.calcsize("iIII")

        yield wait
    finally:
        os.close(fd)


def kill(cluster: Cluster, chance: random.Random, how: str) -> str | None:
    """Start the server and kill it at some moment; None if the run ended before."""
    if how == "start":
        server = cluster.begin()
        time.sleep(chance.uniform(0, 1.5 * (cluster.ready[-1] if cluster.ready else 1.0)))
    else:
        server = cluster.serve()
        if how == "write":
            how = chance.choice(list(EVENTS))
            with watched(cluster.run / "checkpoints", how) as happened:
                for _ in range(chance.randrange(1, 15)):
                    happened(20.0)
        else:
            time.sleep(chance.uniform(0, 3))
    server.send_signal(signal.SIGKILL)
    return f"killed, {how}" if server.wait(10) == -signal.SIGKILL and not cluster.finished() else None


def begun(federation: Cluster) -> list[subprocess.Popen[str]]:
    """Start the parties of a server that is gone again; they have to know its address."""
    federation.serve().kill()
    federation.processes[-1].wait(10)
    return federation.join_all()


def killed(federation: Cluster, chance: random.Random, most: int, made: Callable[[str], object]) -> None:
    """Kill the server of a run so many times, or until it has ended; then the run ends."""
    parties = begun(federation)
    for _ in range(most):
        how = kill(federation, chance, chance.choice(MOMENTS))
        if how is None:
            break
        made(how)
        must(all(party.poll() is None for party in parties), "a party did not wait for its server")
    if not federation.finished():
        newest = federation.newest()
        federation.ends(federation.serve())
        resumed = [fact["round"] for fact in federation.facts("resume")]
        must(newest < 0 or resumed[-1] == newest, f"resumed at {resumed[-1:]}, the newest checkpoint is {newest}")
    true(federation, parties)


def kills(tries: int, folder: Path, say: Say, rounds: int = LONG) -> Iterator[Try]:
    """Kill servers by the clock, at their start, and while a checkpoint is created, written, renamed or removed."""
    done, seed = 0, 0
    whole(job(rounds))
    while done < tries:
        faults = list[str]()

        def made(how: str, faults: list[str] = faults, done: int = done) -> None:
            faults.append(how)
            say(f"{done + len(faults)} of {tries} kills")

        with closing(Cluster(folder / f"kills-{seed}", job(rounds))) as federation:
            chance, most = random.Random(seed), min(IN_A_RUN, tries - done)
            end = outcome(lambda f=federation, c=chance, n=most, m=made: killed(f, c, n, m))
        if end != EQUAL and not faults:
            faults.append("before the first kill")
        yield from (Try(fault, end) for fault in faults)
        done, seed = done + len(faults), seed + 1


# --- flips ------------------------------------------------------------------------------------------------------------

ANSWER = "an answer that is stored"
AGES = {"the newest checkpoint": -1, "the one before": -2}
OF_A_RUN = 20  # flips while it is not over
AFTERWARDS = 5


def files_of(run: Path) -> list[str]:
    """Every file of a run folder that holds anything; of the two checkpoints, by their age."""
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and path.stat().st_size}
    left_out = {name for name in found if name.startswith(("checkpoints/", "answers/")) or "damaged" in name}
    return [*AGES, *sorted(found - left_out)]


def path_of(run: Path, name: str) -> Path:
    return sorted((run / "checkpoints").iterdir())[AGES[name]] if name in AGES else run / name


def goes_on(federation: Cluster, server: subprocess.Popen[str], rounds: int = 2) -> None:
    """Wait for further rounds."""
    done = read(federation.run).done()
    federation.until(
        lambda: read(federation.run).done() >= done + rounds or federation.finished() or server.poll() is not None
    )


def end_now(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def flipped(federation: Cluster, name: str, chance: random.Random) -> str:
    """Flip a bit of a run that was killed, and go on; say what became of it: noticed, passed over or refused."""
    run, copy = federation.run, federation.folder / "copy"
    shutil.copytree(run, copy)
    before = len(federation.said("server"))
    flip(path_of(run, name), chance)
    server, end = federation.begin(), "passed over"
    said = lambda: federation.said("server")[before:]  # noqa: E731 - what is said from here on
    federation.until(lambda: "serving at" in said() or server.poll() is not None, pause=0.01)
    if server.poll() is not None:
        must("run" in sentence(federation, "server", server, before), "the sentence names no file")
        shutil.rmtree(run)
        shutil.copytree(copy, run)
        server, end = federation.serve(), "refused"
    shutil.rmtree(copy)
    goes_on(federation, server)
    end_now(server)
    return "noticed" if end != "refused" and "damaged" in said() else end


def flipped_answer(federation: Cluster, parties: list[subprocess.Popen[str]], chance: random.Random) -> str:
    """Flip a bit of an answer between the server's writing and its reading: it waits for a third party meanwhile."""
    server = federation.serve()
    goes_on(federation, server, 1)
    before = len(federation.said("server"))
    halted = children(parties[2])
    for child in halted:
        child.suspend()
    stored: Callable[[], list[Path]] = lambda: [*(federation.run / "answers").glob("*[!t]")]  # noqa: E731 - no parts
    federation.until(lambda: len(stored()) == 2, pause=0.01)
    flip(chance.choice(stored()), chance)
    for child in halted:
        child.resume()
    federation.until(lambda: "is asked for it again" in federation.said("server")[before:])
    goes_on(federation, server)
    end_now(server)
    return "noticed"


def flipped_at_the_end(federation: Cluster, name: str, chance: random.Random) -> str:
    """Flip a bit of a run that has finished: what is read of it is what was written, or a sentence names the file."""
    copy = Path(shutil.copytree(federation.run, federation.folder / "copy" / "run"))
    flip(path_of(copy, name), chance)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found, right = open_run(copy), open_run(federation.run)
        said = [*map(str, (one.message for one in warned)), *read(copy).damaged]
        same = bool((found.vector == right.vector).all()) and plain(found.facts) == plain(right.facts)
        must(same or any("run" in one for one in said), f"{name}: something else is believed, and nothing is said")
        return "noticed" if said else "passed over"
    except AtollError as error:
        must("run" in str(error), error)
        return "refused"
    finally:
        shutil.rmtree(copy.parent)


def plain(facts: Facts) -> Facts:
    return [fact for fact in facts if fact["what"] in ("start", "round", "evaluation", "end")]


def damaged(
    federation: Cluster, seed: int, names: Sequence[str], flips: int, made: Callable[[str, str], object]
) -> None:
    """Flip bits of files in turn, each after a kill; then the run ends, and bits of what it left are flipped."""
    chance, parties, lost = random.Random(seed), begun(federation), 0
    server = federation.serve()
    goes_on(federation, server, 3)
    end_now(server)
    for k in range(flips):
        among = names or [ANSWER, *files_of(federation.run)]
        name = among[(seed * flips + k) % len(among)]
        by = partial(flipped_answer, federation, parties) if name == ANSWER else partial(flipped, federation, name)
        end = by(chance)
        must(end == "noticed" or name not in (*AGES, ANSWER, "facts.jsonl"), f"{name}: {end}")
        lost += name == "facts.jsonl"
        made(name, end)
    must(not federation.finished(), "the run is too short for so many flips")
    federation.ends(federation.serve())
    true(federation, parties, lost)


def flips(tries: int, folder: Path, say: Say, rounds: int = LONG, names: Sequence[str] = ()) -> Iterator[Try]:
    """Flip bits of every file of run folders in turn, while a run is not over and afterwards."""
    done, seed = 0, 0
    whole(job(rounds))
    while done < tries:
        faults = list[tuple[str, str]]()

        def made(name: str, end: str, faults: list[tuple[str, str]] = faults, done: int = done) -> None:
            faults.append((f"{name}: {end}", SENTENCE if end == "refused" else EQUAL))
            say(f"{done + len(faults)} of {tries} flips; {name}: {end}")

        with closing(Cluster(folder / f"flips-{seed}", job(rounds))) as federation:
            most = min(OF_A_RUN, tries - done)
            end = outcome(lambda f=federation, s=seed, n=most, m=made: damaged(f, s, names, n, m))
            yield from (Try(fault, right if end == EQUAL else end) for fault, right in faults or [("at first", end)])
            done += max(len(faults), 1)
            for k in range(min(AFTERWARDS, tries - done) if end == EQUAL else 0):
                name = (there := files_of(federation.run))[(seed * AFTERWARDS + k) % len(there)]
                chance, found = random.Random(f"{seed} {k}"), list[str]()
                end = outcome(lambda f=federation, n=name, c=chance, e=found: e.append(flipped_at_the_end(f, n, c)))
                yield Try(f"{name} of a run that is over: {''.join(found)}", SENTENCE if found == ["refused"] else end)
                done += 1
        seed += 1


# --- pauses -----------------------------------------------------------------------------------------------------------

PAUSED = ("the server", "the server", "a party", "everybody")
AT_ONCE = 5  # runs: who is paused takes no time of a processor
SHORTEST, LONGEST = 5.0, 60.0  # seconds


def paused(federation: Cluster, chance: random.Random, lengths: Sequence[float], made: Callable[[str], object]) -> None:
    """Stop processes of a run, as a suspend or a snapshot of their machine does, and let them go on."""
    server = federation.serve()
    parties = federation.join_all()
    for seconds in lengths:
        goes_on(federation, server, chance.randrange(1, 4))
        who = chance.choice(PAUSED)
        those = {"the server": [server], "a party": [chance.choice(parties)], "everybody": [server, *parties]}[who]
        stopped = [process for one in those for process in family(one)]
        for process in stopped:
            process.suspend()
        time.sleep(seconds)
        for process in stopped:
            process.resume()
        made(f"{who} paused for {seconds:.0f} s")
    must(not federation.finished(), "the run is too short for so many pauses")
    federation.ends(server)
    true(federation, parties)


def pauses(tries: int, folder: Path, say: Say, longest: float = LONGEST) -> Iterator[Try]:
    """Pause the server, a party or everybody, in several runs at a time."""
    chance, runs = random.Random(0), min(AT_ONCE, tries)
    lengths = [chance.uniform(SHORTEST, longest) for _ in range(tries)]
    text, faults = job(8 * -(-tries // runs) + 10) + QUORUM, [list[str]() for _ in range(runs)]
    whole(text)

    def one(k: int) -> list[Try]:
        def made(how: str) -> None:
            faults[k].append(how)
            say(f"{sum(map(len, faults))} of {tries} pauses; {how}")

        with closing(Cluster(folder / f"pauses-{k}", text)) as federation:
            end = outcome(lambda: paused(federation, random.Random(k), lengths[k::runs], made))
        return [Try(fault, end) for fault in faults[k] or ["paused, at first"]]

    yield from at_once([lambda k=k: one(k) for k in range(runs)])


def at_once(work: Sequence[Callable[[], list[Try]]]) -> Iterator[Try]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for done in as_completed([threads.submit(one) for one in work]):
            yield from done.result()


# --- full disks -------------------------------------------------------------------------------------------------------

PAGE = 4096
SHORT = 40  # rounds
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); " + ATOLL
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9)  # of what a run takes
SHARES_OF_A_PARTY = (0.1, 0.3, 0.5, 0.7)


def mount(*words: str) -> bool:
    return not subprocess.run(["mount", *words], capture_output=True, check=False).returncode


@contextmanager
def small_disk(where: Path, options: str) -> Iterator[Callable[[], None]]:
    """Put a small disk where a folder is; what it gives makes it large enough for everything."""
    where.mkdir(parents=True, exist_ok=True)
    must(mount("-t", "tmpfs", "-o", options, "tmpfs", str(where)), "mounting a small disk is not permitted here")
    try:
        yield lambda: must(mount("-o", "remount,size=64m,nr_inodes=100k", str(where)), "it cannot be made larger")
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=False)


def may_mount(folder: Path) -> bool:
    try:
        with small_disk(folder, f"size={PAGE}"):
            return True
    except AssertionError:
        return False


def taken(folder: Path) -> dict[str, int]:
    """How many bytes a run takes at most on the disks of its server and of a party."""
    text, most = job(SHORT) + QUORUM, {"run": 0, "party-1": 0}
    with ExitStack() as stack:
        federation = Cluster(folder, text)
        for name in most:
            stack.enter_context(small_disk(folder / name, "size=64m"))
        stack.callback(federation.close)
        server = federation.serve()
        federation.join_all()
        while server.poll() is None:
            for name, before in most.items():
                disk = os.statvfs(folder / name)
                most[name] = max(before, (disk.f_blocks - disk.f_bfree) * disk.f_frsize)
            time.sleep(0.002)
        federation.ends(server)
    return most


def sizes(most: dict[str, int]) -> list[tuple[str, str]]:
    """Disks, from one on which nothing fits to one that lacks a page: which folder is on it, and how it is mounted."""
    found = list[tuple[str, str]]()
    for name, least, shares in (("run", (1, 2), SHARES), ("party-1", (), SHARES_OF_A_PARTY)):
        pages = -(-most[name] // PAGE)
        some = [*least, *(max(1, int(share * pages)) for share in shares), pages - 1]
        found += [(name, f"size={PAGE},nr_inodes=1"), *((name, f"size={PAGE * n}") for n in some)]
    return found


def limits() -> list[tuple[str, str]]:
    """Largest sizes of any file, where no disk can be mounted."""
    return [("limit", str(int(1000 * 1.3**k))) for k in range(20)]


def stuck(federation: Cluster, server: subprocess.Popen[str], seconds: float = 20.0) -> bool:
    """Wait until a server ends; True where it says that it waits for space, and there were no further rounds."""
    rounds, since, began = federation.rounds(), time.monotonic(), time.monotonic()
    while server.poll() is None:
        if federation.rounds() > rounds:
            rounds, since = federation.rounds(), time.monotonic()
        if time.monotonic() - since > seconds:
            if (state := federation.status()["state"]) == "full":
                return True
            since = time.monotonic()
            must(since - began < 600, f"no end, and the state is {state}: {federation.said('server')[-200:]}")
        time.sleep(0.05)
    return False


def checkpoints_are_whole(federation: Cluster) -> None:
    from safetensors.numpy import load_file

    for path in (federation.run / "checkpoints").glob("*.safetensors"):
        must(int(load_file(path)["t"]) == int(path.stem), f"{path.name} is not whole")


def met(federation: Cluster, **how: str) -> tuple[subprocess.Popen[str], list[subprocess.Popen[str]]]:
    """Start a server, and parties if it gets so far."""
    server, parties = federation.begin(**how), list[subprocess.Popen[str]]()
    federation.until(lambda: "serving at" in federation.said("server") or server.poll() is not None)
    if "serving at" in federation.said("server"):
        federation.address = federation.said("server").split("serving at ")[1].split(";")[0]
        parties = federation.join_all()
    return server, parties


def full_server(federation: Cluster, grow: Callable[[], None], **how: str) -> str:
    """Let a run meet the end of its server's disk, give it space, and let it end."""
    server, parties = met(federation, **how)
    waits = stuck(federation, server)
    if not waits and server.returncode == 0:
        true(federation, parties)
        return EQUAL
    if not waits:  # where it does, for space, parties send again what was not stored
        said = sentence(federation, "server", server)
        remedy = "free some space" in said or "choose another folder" in said
        must("cannot write to run" in said and remedy, f"no remedy: {said}")
    checkpoints_are_whole(federation)
    grow()
    if federation.finished():  # of which only the report is missing
        true(federation, parties)
        return SENTENCE
    if not waits:
        until = time.monotonic() + 20  # who was told that the run has failed ends, who was not waits
        while parties and any(party.poll() is None for party in parties) and time.monotonic() < until:
            time.sleep(0.1)
        server = federation.serve()
        parties = parties or federation.join_all()
        federation.revive(parties)
    federation.ends(server)
    true(federation, parties)
    return SENTENCE


def full_party(federation: Cluster, grow: Callable[[], None], k: int = 1) -> str:
    """Let a run meet the end of a party's disk, give that party space, and let the run end."""
    server, parties = met(federation)
    while server.poll() is None and parties[k].poll() is None:
        time.sleep(0.05)
    if parties[k].poll() in (None, 0):
        federation.ends(server)
        true(federation, parties)
        return EQUAL
    said = sentence(federation, f"p{k}", parties[k])
    must(f"party-{k}" in said, f"the sentence names no folder: {said}")
    must(server.poll() is None, "the server did not wait for the party")
    grow()
    parties[k] = federation.join(k)
    federation.ends(server)
    true(federation, parties)
    return SENTENCE


def disk(tries: int, folder: Path, say: Say) -> Iterator[Try]:
    """Let disks be full at sizes from nothing at all to one page too few, the server's and a party's."""
    text = job(SHORT) + QUORUM
    whole(text)
    every = sizes(taken(folder / "taken")) if may_mount(folder / "disk") else limits()
    for k in range(tries):
        name, options = every[k * len(every) // tries]
        with ExitStack() as stack:
            federation = Cluster(folder / f"disk-{k}", text)
            if name == "limit":
                meets = partial(full_server, federation, lambda: None, code=LIMITED.format(options))
            else:
                grow = stack.enter_context(small_disk(federation.folder / name, options))
                meets = partial(full_server if name == "run" else full_party, federation, grow)
            stack.callback(federation.close)
            end = outcome(meets)
        say(f"{k + 1} of {tries} disks; {name}, {options}: {end}")
        yield Try(f"{name}, {options}", end)


# --- lines ------------------------------------------------------------------------------------------------------------

MBIT, DELAY, RESET = 0.5, 0.2, 0.05
HIDDEN = (16, 16, 160)  # models of 5 kB and of 48 kB


def narrow(federation: Cluster, seed: int, made: Callable[[Proxy], object]) -> None:
    """Let each party have a line of its own that is narrow and far, and breaks."""
    server = federation.serve()
    with ExitStack() as stack:
        lines = [
            stack.enter_context(closing(Proxy(
                federation.address, seed=3 * seed + k, rate=MBIT * 125_000, delay=DELAY, reset=RESET,
            )))
            for k in range(federation.parties)
        ]  # fmt: skip
        parties = [federation.join(k, address=line.address) for k, line in enumerate(lines)]
        federation.ends(server)
        for line in lines:
            made(line)
            line.reset = 0.0  # who was not told the end hears it now, or waits for a server that comes back
        true(federation)
        for party in parties:
            party.terminate()


def line(tries: int, folder: Path, say: Say) -> Iterator[Try]:
    """Let runs go over lines of 0.5 Mbit/s, 200 ms each way, on which 5 % of all pieces of data meet a reset."""
    texts = [job(6, hidden=size) + QUORUM for size in HIDDEN]
    for text in set(texts):
        whole(text)

    def one(k: int) -> list[Try]:
        seen = list[int]()
        with closing(Cluster(folder / f"line-{k}", texts[k % len(texts)])) as federation:
            end = outcome(lambda: narrow(federation, k, lambda line: seen.append(line.seen["reset"])))
            took = max((fact["elapsed"] for fact in federation.facts("round")), default=0.0)
        fault = f"{HIDDEN[k % len(HIDDEN)]} hidden units, {sum(seen)} resets, 6 rounds in {took:.0f} s"
        say(f"a line: {fault}: {end}")
        return [Try(fault, end)]

    yield from at_once([lambda k=k: one(k) for k in range(tries)])
