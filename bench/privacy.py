"""What privacy costs: secure aggregation, encryption, noise, accounting and compression.

    python bench/rivals/environments.py flower phe      # once: the two rivals, each in its own environment
    python bench/privacy.py [--only secagg flower …] [--repeat 5] [--quick]

Seconds of the protocols are CPU seconds of one core; a figure is the median over `--repeat` turns, and sides that are
compared take turns. `--quick` runs everything small: it shows that the benchmark works, and no figure worth quoting.
"""

import argparse
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import atoll
from atoll.combine.hidden import bits_of
from atoll.core.wire import Codec, EncodeContext, Wire, chain
from atoll.core.world import World
from atoll.crypto import field, light, paillier, secagg
from atoll.crypto.keys import Identity
from atoll.crypto.mask import add_mask, packed_bytes
from atoll.crypto.packing import Slots
from atoll.crypto.rehearse import agreed_by, least
from atoll.crypto.secagg import messages

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "rivals"))

from environments import python_of  # noqa: E402
from workload import load  # noqa: E402

Rows = Iterator[tuple[str, str, str]]  # what, measured, how
MODEL = bytes(32)
TWO_NN = 199_210  # parameters
MNIST = bool(os.environ.get("ATOLL_DATA")) and Path(os.environ["ATOLL_DATA"], "mnist").is_dir()


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    repeat: int = 5
    n: int = 100
    d: int = 1_000_000
    d_light: int = 100_000
    sealed: int = 400  # ciphertexts made at a time
    opened: int = 40  # of which are decrypted
    rounds: int = 20  # of each channel, times `repeat`
    trained: int = 200  # rounds to compare accuracies after: error feedback needs a party to come back


QUICK = Scale(repeat=2, n=20, d=10_000, d_light=2_000, sealed=10, opened=2, rounds=4, trained=2)


class Missing(Exception):
    """Something that a section needs is not there; the sentence says how to get it."""


@contextmanager
def rival(environment: str, script: str, **arguments: int) -> Iterator[Callable[[], dict]]:
    """Run a rival's script in its own environment; each call is one measurement."""
    python = python_of(environment)
    if python is None:
        raise Missing(f"not installed: python bench/rivals/environments.py {environment}")
    options = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    command = [str(python), str(HERE / "rivals" / script), *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, **pipes) as process:

        def turn() -> dict:
            process.stdin.write("go\n")
            line = process.stdout.readline()
            if not line:
                raise Missing(f"{script} ended with code {process.wait()}")
            return json.loads(line)

        yield turn


def timed(work: Callable, *given: object) -> tuple:
    """CPU seconds of a call, and what it gave."""
    began = time.process_time()
    found = work(*given)
    return time.process_time() - began, found


def check(found: np.ndarray, true: np.ndarray) -> None:
    if not np.array_equal(found, true):
        raise ArithmeticError("what was opened is not the sum")


def channel_of(n: int, d: int) -> tuple[Wire, Codec]:
    """The stages of a secure sum: a clipped vector, 16 bits a number."""
    return chain(atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(16))(Wire.of(d, n))


def answer(client: secagg.SecureClient, step: str, message: bytes, x: np.ndarray) -> bytes:
    if step == "advertise":
        return client.advertise(message, t=0, model=MODEL)
    return client.answer(step, message, x)


class Cohort:
    """One round of secure aggregation: a real server and real parties."""

    def __init__(self, n: int, d: int, bits: int) -> None:
        self.keys = [Identity.new() for _ in range(n)]
        agreed = agreed_by(dict(enumerate(self.keys)))
        self.plan = secagg.SecurePlan(
            agreed.terms(secrets.token_bytes(16), 0, range(n), MODEL), least(n), 0, 32, bits, d
        )
        rules = agreed, secagg.SecurePolicy(n_min=3, size=d, bits=bits)
        parties = [secagg.Participant(who, key, *rules, secagg.SpentHere()) for who, key in enumerate(self.keys)]
        self.parties = [secagg.SecureClient(party) for party in parties]
        self.server = secagg.SecureServer(self.plan, agreed.roster)

    def one_party(self, x: np.ndarray) -> tuple[dict[str, float], int]:
        """CPU seconds of each of party 0's messages, and its bytes up and down.

        The others deal and sign in earnest, but send blank vectors: party 0 sees nothing of those.
        """
        n, plan, seconds, traffic = len(self.keys), self.plan, {}, 0
        blank = secagg.encode(messages.Masked(bytes(packed_bytes(plan.size, plan.bits))))
        inbox = dict.fromkeys(range(n), secagg.encode(plan))
        for step in secagg.STEPS:
            seconds[step], mine = timed(answer, self.parties[0], step, inbox[0], x)
            traffic += len(inbox[0]) + len(mine)
            self.server.take(0, mine)
            if step == "unmask":
                break
            if step == "share":
                adverts = messages.adverts_digest(messages.decode(messages.Bundle, inbox[0], n).adverts)
                said = messages.survivors_statement(plan, adverts, list(range(n)))
            for who in range(1, n):
                if step == "masked":
                    message = blank
                elif step == "consistent":
                    message = secagg.encode(messages.Signed(self.keys[who].sign(said)))
                else:
                    message = answer(self.parties[who], step, inbox[who], x)
                self.server.take(who, message)
            inbox = self.server.turn()
        return seconds, traffic


def served(n: int, d: int, bits: int, dropouts: int) -> tuple[secagg.SecureServer, float]:
    """A server that is ready to finish, and its CPU seconds so far; the last parties never sent their vector."""
    cohort, draw, total, seconds = Cohort(n, d, bits), np.random.default_rng(0), np.zeros(d, np.uint32), 0.0
    inbox, server = dict.fromkeys(range(n), secagg.encode(cohort.plan)), cohort.server
    for step in secagg.STEPS:
        for who in range(n - dropouts) if step == "masked" else inbox:
            x = draw.integers(0, 2**16, d, np.uint32) if step == "masked" else total[:0]
            mine = answer(cohort.parties[who], step, inbox[who], x)
            seconds += timed(server.take, who, mine)[0]
            total[: len(x)] += x
        if step != "unmask":
            took, inbox = timed(server.turn)
            seconds += took
    check(server.finish(), total)
    return server, seconds


def show_parts(turns: Sequence[dict[str, float]]) -> str:
    return ", ".join(f"{name} {1000 * median(turn[name] for turn in turns):.0f} ms" for name in turns[0])


def of_secagg(scale: Scale) -> Rows:
    n, d = scale.n, scale.d
    bits = bits_of(channel_of(n, d)[0])
    x = np.random.default_rng(0).integers(0, 2**16, max(d, TWO_NN), np.uint32)
    turns = [Cohort(n, d, bits).one_party(x[:d])[0] for _ in range(scale.repeat)]
    seconds = median(sum(turn.values()) for turn in turns)
    what = f"n={n}, d={d:,}, {bits} bits a number"
    yield f"secure sum, one party's CPU: {what}", f"{seconds:.3f} s", show_parts(turns)
    y, key = np.zeros(d, np.uint32), secrets.token_bytes(32)
    rates = [20 * y.nbytes / timed(lambda: [add_mask(y, key) for _ in range(20)])[0] for _ in range(scale.repeat)]
    yield "masks made and added", f"{median(rates) / 1e9:.2f} GB/s", "AES-256-CTR, one core"
    lost = n // 10
    server, handling = served(n, d, bits, lost)
    finish = median(timed(server.finish)[0] for _ in range(scale.repeat))
    parts = f"all messages {handling:.2f} s (once), finish {finish:.2f} s, {server.expansions} masks"
    yield f"the server's CPU, {lost} of {n} drop out: {what}", f"{handling + finish:.2f} s", parts
    plain, how = 2 * TWO_NN, "up and down, over 16 bits a number"
    for bits, why in ((23, "as the paper counts"), (bits_of(channel_of(n, TWO_NN)[0]), "as the channel sends")):
        sent, formula = Cohort(n, TWO_NN, bits).one_party(x[:TWO_NN])[1], secagg.bytes_sent(n, TWO_NN, bits)
        measured = f"{sent / formula:.3f} × formula; {sent / plain:.3f}, formula {formula / plain:.3f}"
        yield f"bytes of one party, 2NN, n={n}, {bits} bits: {why}", measured, how


def of_flower(scale: Scale) -> Rows:
    n, d = scale.n, scale.d
    wire, codec = channel_of(n, d)
    x = np.random.default_rng(0).standard_normal((1, d), np.float32)
    about = EncodeContext(np.ones(1, np.float32), World.real(0), 0, np.zeros(1, np.int64))
    ours, theirs = [], []  # seconds of each part, turn by turn
    with rival("flower", "run_flower_secagg.py", parties=n, threshold=least(n), size=d) as flower:
        for _ in range(scale.repeat):
            encoding, coded = timed(codec.encode, x, {}, about)
            ours.append({"clip and round": encoding} | Cohort(n, d, bits_of(wire)).one_party(coded.x[0])[0])
            record = flower()
            theirs.append(record["seconds"])
    mine, other = ([sum(turn.values()) for turn in turns] for turns in (ours, theirs))
    what = f"one client's CPU, {d:,} float32, n={n}, all are neighbours"
    yield f"Atoll: {what}", f"{median(mine):.3f} s", show_parts(ours)
    yield f"Flower {record['version']}: {what}", f"{median(other):.3f} s", show_parts(theirs)
    ratio = median(b / a for a, b in zip(mine, other, strict=True))
    yield "Flower / Atoll", f"{ratio:.1f} ×", f"median of {scale.repeat} turns"


def of_paillier(scale: Scale) -> Rows:
    for bits in paillier.SIZES:
        making, key = timed(paillier.keypair, bits)
        public, slots = key.public, Slots(16, scale.n, bits)
        tables = timed(public.encrypt_many, [0])[0]
        values = np.random.default_rng(0).integers(-(2**15), 2**15, scale.sealed * slots.per_plaintext)
        some = values[: scale.opened * slots.per_plaintext]
        turns = []
        with rival("phe", "run_phe.py", bits=bits, values=scale.opened) as phe:
            for _ in range(scale.repeat):
                packing, plain = timed(slots.pack, values)
                encrypting, sealed = timed(public.encrypt_many, plain)
                adding, sums = timed(list, map(public.add, sealed, sealed))
                decrypting, opened = timed(key.decrypt_many, sums[: scale.opened])
                check(slots.unpack_sum(opened, 2, len(some)), 2 * some)
                record = phe()
                ours = np.divide([packing + encrypting, adding, decrypting], [len(values), len(values), len(some)])
                turns.append([*ours, record["seconds"], record["seconds"] / ours[0]])
        encrypting, adding, decrypting, theirs, ratio = np.median(turns, axis=0)
        what = f"Paillier {bits}"
        how = f"16 bits, {slots.per_plaintext} in a ciphertext; key {making:.1f} s and tables {tables:.2f} s once"
        yield f"{what}: pack and encrypt", f"{1 / encrypting:,.0f} values/s", how
        size = len(public.ciphertexts_to_bytes(sealed)) / len(values)
        yield f"{what}: bytes a value", f"{size:.2f}", f"sums of up to {scale.n} vectors"
        yield f"{what}: add; decrypt", f"{1 / adding:,.0f}; {1 / decrypting:,.0f} values/s", "without unpacking"
        how = f"phe {record['version']} with gmpy2: {1 / theirs:,.0f} values/s, one in a ciphertext"
        yield f"{what}: phe / Atoll, time to encrypt a value", f"{ratio:.0f} ×", how


def light_server(n: int, d: int, dropouts: int) -> light.LightServer:
    """A server of LightSecAgg that has everything but the last step."""
    keys = [Identity.new() for _ in range(n)]
    roster = {who: key.public for who, key in enumerate(keys)}
    plan = light.Light(roster, n // 2, 7 * n // 10, d, secrets.token_bytes(16))
    users = [light.LightClient(plan, who, key) for who, key in enumerate(keys)]
    server, x, inbox = light.LightServer(plan), np.arange(d, dtype=np.uint32), dict.fromkeys(range(n), b"")
    for step in light.STEPS:
        for who, message in inbox.items():
            given = {"advertise": (), "upload": (message, x)}.get(step, (message,))
            if step != "upload" or who < n - dropouts:
                server.take(who, getattr(users[who], step)(*given))
        inbox = server.turn() if step != "recover" else {}
    check(copy(server).finish(), x.astype(np.uint64) * (n - dropouts) % field.P)
    return server


def of_light(scale: Scale) -> Rows:
    n, d = scale.n, scale.d_light
    lost = [n * percent // 100 for percent in (0, 10, 20, 30)]
    coded = [light_server(n, d, dropouts) for dropouts in lost]
    paired = [served(n, d, 32, dropouts)[0] for dropouts in lost]
    # A copy, because a server of LightSecAgg finishes once; more turns, because it takes milliseconds.
    turns = [[timed(copy(server).finish)[0] for server in (*coded, *paired)] for _ in range(4 * scale.repeat)]
    seconds = np.median(turns, axis=0)
    for name, found in (("LightSecAgg", seconds[:4]), ("Bonawitz", seconds[4:])):
        for dropouts, taken in zip(lost, found, strict=True):
            what = f"{name}: unmasking, {dropouts} of {n} dropped out, d={d:,}"
            yield what, f"{taken / found[0]:.2f} ×", f"{1000 * taken:.1f} ms of server CPU"


def rounds_in_turns(jobs: list[atoll.Job], data: atoll.Federated) -> np.ndarray:
    """Seconds of each round (rows) of each job (columns), a round of each in turns: what disturbs one disturbs all.

    The first two rounds, in which models compile, are left out.
    """
    mine = [threading.Semaphore(0) for _ in jobs]
    seconds: list[list[float]] = [[] for _ in jobs]

    def run(k: int) -> None:
        began, after = 0.0, mine[(k + 1) % len(jobs)]

        def sink(note: Any) -> None:
            nonlocal began
            if note.what == "round":
                seconds[k].append(time.perf_counter() - began)
                after.release()
                if len(seconds[k]) < jobs[k].rounds:
                    mine[k].acquire()
                began = time.perf_counter()

        mine[k].acquire()
        with tempfile.TemporaryDirectory() as folder:
            atoll.simulate(jobs[k], data, out=folder, sinks=(sink,))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(jobs))]
    for thread in threads:
        thread.start()
    mine[0].release()
    for thread in threads:
        thread.join()
    return np.array(seconds).T[2:]


def of_channel(scale: Scale) -> Rows:
    work = load("2nn")
    data = atoll.data.federate([(np.asarray(x), np.asarray(y)) for x, y in work.data], classes=work.classes)
    method = atoll.FedAvg(atoll.models.mlp((200, 200)), work.epochs, work.batch, work.lr)
    clipped = [atoll.Clip(1.0), atoll.Average("expected")]
    in_ring = [*clipped, atoll.Ring(), atoll.Gaussian(1.0, "distributed")]
    channels = {
        "plain: Weigh, Sum": atoll.Channel(),
        "Clip, Ring, distributed noise, SecureSum (simulated)": atoll.Channel(in_ring, atoll.SecureSum()),
        "Clip, central noise, Sum": atoll.Channel([*clipped, atoll.Gaussian(1.0)]),
    }
    rounds = 2 + scale.rounds * scale.repeat
    jobs = [atoll.Job(method, atoll.Count(work.cohort), c, rounds=rounds, eval_every=rounds) for c in channels.values()]
    seconds = rounds_in_turns(jobs, data)
    for k, name in enumerate(channels):
        low, middle, high = 100 * np.quantile(seconds[:, k] / seconds[:, 0] - 1, [0.25, 0.5, 0.75])
        measured = f"{1000 * np.median(seconds[:, k]):.1f} ms" + (f", {middle:+.0f} %" if k else "")
        how = f"{len(seconds)} rounds in turns" + (f", half of them {low:+.0f} to {high:+.0f} %" if k else "")
        yield f"a round of the 2NN, 10 of 100: {name}", measured, how


def account_once() -> None:
    """In a process of its own, so that nothing is cached: print the answer and the seconds of each question."""
    began = time.perf_counter()
    from dp_accounting import pld, rdp  # noqa: F401

    from atoll.privacy import Account, Spend, multiplier_for

    found = {"import dp_accounting": ("", time.perf_counter() - began)}
    poisson = Account(Spend(1.0, "poisson", 0.01), 1e-5)
    fixed = Account(Spend(2.0, "fixed", 0.01, population=10_000), 1e-5)
    for name, question in {
        "ε after 10,000 rounds, RDP, cold, Poisson 1 %": lambda: poisson.epsilon(10_000),
        "ε after each of 10,000 rounds, warm": lambda: [poisson.epsilon(t) for t in range(1, 10_001)][-1],
        "ε after 10,000 rounds, RDP, cold, 100 of 10,000 without replacement": lambda: fixed.epsilon(10_000),
        "ε after 10,000 rounds, PLD, Poisson 1 %": lambda: poisson.tight(10_000),
        "multiplier for ε = 8 after 10,000 rounds, RDP": lambda: multiplier_for(8.0, 1e-5, 10_000, 0.01),
        "the same, PLD": lambda: multiplier_for(8.0, 1e-5, 10_000, 0.01, accountant="pld"),
    }.items():
        began = time.perf_counter()
        found[name] = (f"{question():.3f}", time.perf_counter() - began)
    print(json.dumps(found))


def of_account(scale: Scale) -> Rows:
    command = [sys.executable, str(Path(__file__).resolve()), "--account"]
    turns = [json.loads(subprocess.check_output(command)) for _ in range(scale.repeat)]
    for name, (value, _) in turns[0].items():
        seconds = median(turn[name][1] for turn in turns)
        yield name, f"{seconds:.3f} s", f"answer {value}" if value else ""


def of_training(scale: Scale) -> Rows:
    from atoll.stages.sparsify import TopK

    if not MNIST:
        raise Missing("needs MNIST: set ATOLL_DATA to the folder that holds it")
    rounds, method = scale.trained, atoll.FedAvg(atoll.models.mlp((200, 200)), 1, 10, 0.1)
    in_ring = [atoll.Clip(10.0), atoll.Average("expected"), atoll.Ring(16)]
    channels = {
        "plain": atoll.Channel(),
        "SecureSum, 16 bits": atoll.Channel(in_ring, atoll.SecureSum()),
        "TopK 1 % with feedback": atoll.Channel([atoll.Weigh(), TopK(0.01)]),
    }
    ends, sent = {name: [] for name in channels}, {}
    for seed in range(scale.repeat):
        data = atoll.data.load("mnist").split(100, by="iid", seed=seed)
        for name, channel in channels.items():
            job = atoll.Job(method, atoll.Count(10), channel, rounds=rounds, eval_every=rounds)
            run = atoll.simulate(job, data, seed)
            ends[name].append(100 * run.curve("test.accuracy")[1][-1])
            sent[name] = sum(run.curve("bytes_up")[1])
    for name, found in ends.items():
        gap = float(np.mean(np.subtract(found, ends["plain"])))
        share = f"{100 * sent[name] / sent['plain']:.1f} % of the bytes"
        measured = f"{np.mean(found):.2f} %" + ("" if name == "plain" else f", {gap:+.2f} points, {share}")
        how = f"mean of {scale.repeat} seeds, test accuracy after {rounds} rounds"
        yield f"2NN, 10 of 100, MNIST IID: {name}", measured, how


SECTIONS = {name: globals()[f"of_{name}"] for name in
            ("secagg", "flower", "paillier", "light", "channel", "account", "training")}  # fmt: skip


def machine() -> str:
    cpu = Path("/proc/cpuinfo")
    chip = (re.findall(r"model name\s*: (.*)", cpu.read_text() if cpu.exists() else "") or [platform.machine()])[0]
    return f"{os.cpu_count()} cores, {chip}, Python {platform.python_version()}, NumPy {np.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--account", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.account:
        sys.exit(account_once())
    scale = QUICK if given.quick else Scale()
    scale = replace(scale, repeat=given.repeat or scale.repeat)
    print(f"{machine()}\n\n| what | measured | how |\n|---|---|---|", flush=True)
    for name in given.only:
        try:
            for row in SECTIONS[name](scale):
                print(f"| {' | '.join(row)} |", flush=True)
        except Missing as why:
            print(f"| {name} | | {why} |", flush=True)


if __name__ == "__main__":
    main()
