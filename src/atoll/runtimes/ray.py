"""Actors on a Ray cluster that answer chunks, as the processes of a pool do. No round, method or journal lives here."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from atoll.core.tree import Tree
from atoll.runtimes import sweep
from atoll.runtimes.pool import SLOTS, TRIES, failure
from atoll.runtimes.workers import Answer, Chunk, PartyFailed, Worker

PATIENCE = 60.0  # seconds until some actor must be there
LOOPBACK = "127.0.0.1"

Ref = Any  # a promise of Ray's


class NoCluster(RuntimeError):
    """There is no Ray cluster, or none that can do this work; the sentence says why."""


class _Place(NamedTuple):
    """Where an actor lives, and with what."""

    pid: int
    node: str
    versions: Mapping[str, str]


class _Work:
    """The chunks of one question: what is to do (the next one last), what is with which actor, how often tried."""

    def __init__(self, chunks: Sequence[Chunk], told: Ref) -> None:
        self.chunks, self.told = chunks, told
        self.todo = list(range(len(chunks)))[::-1]
        self.flying: dict[Ref, tuple[int, int]] = {}  # (chunk, actor), oldest first
        self.tries = [0] * len(chunks)

    def back(self, h: int) -> int:
        """Take back all that an actor has; return the oldest."""
        refs = [ref for ref, (_, holder) in self.flying.items() if holder == h]
        chunks = [self.flying.pop(ref)[0] for ref in refs]
        self.todo = sorted(self.todo + chunks, reverse=True)
        return chunks[0]


class Hand:
    """What an actor is: a worker with its samples, single-threaded."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def ready(self) -> tuple[int, str, dict[str, str]]:
        """Say where this is: process, node, versions of what decides the bits."""
        return os.getpid(), _ray().util.get_node_ip_address(), _versions()

    def answer(self, chunk: Chunk, body: Tree) -> tuple[str | None, Answer | None]:
        """Answer a chunk; or say in a sentence which party failed."""
        try:
            return None, self._worker.answer(chunk, body)
        except Exception as error:
            return failure(self._worker, chunk, error), None


class RayPool:
    """Actors that answer chunks in parallel, one a CPU; `answers` yields them in the order of the chunks.

    Samples and handlers are placed in the cluster once. An actor that is lost, alone or with its node, is started anew
    wherever there is room, and its chunks are done again; until there is room the others do them.
    """

    def __init__(self, worker: Worker, size: int | None = None, address: str | None = None) -> None:
        if size is not None and size < 1:
            raise ValueError(f"workers={size}: a number of actors is 1 or more")
        self._leave = connect(address, size)
        self.died: list[str] = []
        self._actors: dict[int, Any] = {}
        self._starting: dict[Ref, int] = {}
        self._places: dict[int, _Place] = {}  # the actors that are there
        self._stumbles: dict[int, int] = {}  # starts that failed, in a row
        try:
            ray = _ray()
            self._actor = ray.remote(Hand).options(num_cpus=1, runtime_env={"env_vars": _alone()})
            try:
                self._worker = ray.put(worker)
            except Exception as error:  # pickling fails in many ways, and a store may be full
                raise NoCluster(f"the job or its data cannot travel to Ray's actors ({_line(error)})") from None
            for h in range(size or max(int(ray.cluster_resources().get("CPU", 1)), 1)):
                self._start(h)
            while not self._places:
                self._settle(self._landed(()))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._actors)

    def processes(self) -> list[int]:
        """Return the process ids of the actors that are there, each on its own node."""
        return [place.pid for _, place in sorted(self._places.items())]

    def answers(self, chunks: Sequence[Chunk], body: Tree) -> Iterator[tuple[Answer, int]]:
        """Yield each chunk's (answer, actor number), in order."""
        work = _Work(chunks, _ray().put(body))
        done: dict[int, tuple[Answer, int]] = {}
        for turn in range(len(chunks)):
            self._deal(work, turn)
            while turn not in done:
                landed = self._landed(work.flying)
                self._settle(landed)
                for ref in landed:
                    if ref in work.flying:  # else it is a start
                        done |= self._collect(work, ref)
                self._deal(work, turn)
            yield done.pop(turn)

    def _deal(self, work: _Work, turn: int) -> None:
        """Give chunks to those who have least; two in hand hide the way there and back."""
        busy = [h for _, h in work.flying.values()]
        last = turn + SLOTS * len(self._places)  # answers that wait for their turn take memory
        for h in sorted(self._places, key=busy.count):
            for _ in range(2 - busy.count(h)):
                if work.todo and work.todo[-1] < last:
                    c = work.todo.pop()
                    work.flying[self._actors[h].answer.remote(work.chunks[c], work.told)] = c, h

    def _collect(self, work: _Work, ref: Ref) -> dict[int, tuple[Answer, int]]:
        """Take an answer in; where its actor is lost, its chunks are to be done again."""
        c, h = work.flying[ref]
        try:
            failed, answer = _ray().get(ref)
        except _losses() as error:
            oldest = work.back(h)  # an actor does one chunk after the other: it was at the oldest
            work.tries[oldest] += 1
            if work.tries[oldest] >= TRIES:
                raise _given_up(work.chunks[oldest], error) from None
            self._lost(h, error)
            return {}
        if failed:
            raise PartyFailed(failed)
        del work.flying[ref]
        return {c: (answer, h)}

    def close(self) -> None:
        """End all actors; leave the cluster, and end it if it was started for this."""
        for actor in self._actors.values():
            with contextlib.suppress(Exception):  # the cluster may be gone
                _ray().kill(actor)
        self._actors, self._starting, self._places = {}, {}, {}
        self._worker = None  # the cluster may forget the samples
        leave, self._leave = self._leave, _stay
        leave()

    def _start(self, h: int) -> None:
        self._actors[h] = self._actor.remote(self._worker)
        self._starting[self._actors[h].ready.remote()] = h

    def _landed(self, flying: Iterable[Ref]) -> list[Ref]:
        """Wait until an answer or an actor is there; without any actor only so long."""
        waiting = [*flying, *self._starting]
        limit = None if self._places else PATIENCE
        landed: list[Ref] = _ray().wait(waiting, timeout=limit)[0] if waiting else []
        if not landed:
            free = _ray().available_resources().get("CPU", 0)
            why = f"; the last to be lost: {self.died[-1]}" if self.died else ""
            raise NoCluster(f"no actor started within {PATIENCE:g} s: the Ray cluster has {free:g} free CPUs{why}")
        return landed

    def _settle(self, landed: Sequence[Ref]) -> None:
        """Take in the actors that have started; start anew those that failed to, but not for ever."""
        gone: tuple[type[Exception], ...] = (*_losses(), OtherVersions)
        for ref in landed:
            if ref not in self._starting:
                continue
            h = self._starting.pop(ref)
            try:
                place = _Place(*_ray().get(ref))
                if place.versions != _versions():
                    raise OtherVersions(_difference(place))
            except gone as error:
                self._stumbles[h] = self._stumbles.get(h, 0) + 1
                self._lost(h, error)
                continue
            self._stumbles[h] = 0
            self._places[h] = place

    def _lost(self, h: int, error: Exception) -> None:
        place = self._places.pop(h, None)
        self.died.append(f"actor {h}{f' on {place.node}' if place else ''}: {_line(error)}")
        with contextlib.suppress(Exception):  # what cannot be reached may still be alive
            _ray().kill(self._actors[h])
        del self._actors[h]
        if self._stumbles.get(h, 0) < TRIES:
            self._start(h)
        elif not self._actors:
            raise NoCluster(f"no actor can start: {_line(error)}") from None


class OtherVersions(RuntimeError):
    """A node that would compute other bits."""


def _given_up(chunk: Chunk, error: Exception) -> PartyFailed:
    parties = ", ".join(map(str, chunk.me[:5].tolist()))
    return PartyFailed(
        f"{TRIES} actors died over the same parties ({parties}; {_line(error)}): "
        "too little memory, or a crash in native code; run with --loop to see which party it is"
    )


def _difference(place: _Place) -> str:
    ours = _versions()
    names = sorted(n for n in ours.keys() | place.versions.keys() if ours.get(n) != place.versions.get(n))
    differ = ", ".join(f"{n} {place.versions.get(n, 'missing')} (here {ours.get(n, 'missing')})" for n in names)
    return f"node {place.node} has {differ}: results would differ, install the same on every node"


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {}
    for name in ("atoll", "jax", "jaxlib", "numpy", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _alone() -> dict[str, str]:
    """Give an actor one thread and memory that is used again at once, as the processes of a pool have."""
    flag = "--xla_cpu_multi_thread_eigen=false"
    given = os.environ.get("XLA_FLAGS", "")
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
    return {
        **dict.fromkeys(threads, "1"),
        "XLA_FLAGS": given if flag in given else f"{given} {flag}".strip(),
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    }


def _line(error: Exception) -> str:
    """Return the line of an error that says most: Ray's are long, and end with the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    deep = "creation task" in str(error) or "Traceback" in str(error)
    cause = lines[-1] if deep else lines[0] if lines else ""
    return f"{type(error).__name__}: {cause}".rstrip(":. ")


def _losses() -> tuple[type[Exception], ...]:
    """What Ray raises when an actor, its node or what it left there is gone."""
    from ray import exceptions as e

    return (
        e.RayActorError, e.ObjectLostError, e.NodeDiedError, e.WorkerCrashedError, e.OutOfMemoryError,
        e.RuntimeEnvSetupError, e.ActorUnschedulableError,
    )  # fmt: skip


# --- the cluster ------------------------------------------------------------------------------------------------------


def connect(address: str | None = None, cpus: int | None = None) -> Callable[[], None]:
    """Join the cluster at an address, or start one that only this machine and user reach; return how to leave.

    Without an address a cluster that this process has already joined is used, and left as it is.
    """
    address = None if address == "local" else address
    with contextlib.ExitStack() as leave, _environment(**_private()) if address is None else contextlib.nullcontext():
        in_time = address is not None or _import_privately()
        ray = _ray()
        if ray.is_initialized():
            if address is not None:
                raise NoCluster(f"address={address}: this process has joined a Ray cluster already; name no address")
            return _stay
        leave.callback(_answer_to_sigterm, signal.getsignal(signal.SIGTERM))  # till then it is Ray's: an exit in order
        where: dict[str, Any] = {"address": address}
        if address is not None:
            _knock(address)
        elif not in_time:
            raise NoCluster(
                "Ray was imported before the run, with settings that let a cluster listen to the network: "
                "import ray later or run in another process, or call ray.init yourself and that cluster is used"
            )
        else:
            if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 52):
                raise NoCluster(f"Ray {ray.__version__} starts clusters without a password: install 2.52 or later")
            where = {
                "address": "local", "num_cpus": cpus, "include_dashboard": False, "_node_ip_address": LOOPBACK,
                "_temp_dir": leave.enter_context(_folder()),
            }  # fmt: skip
        leave.callback(ray.shutdown)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX's; Ray's fork ends in exec at once
                warnings.filterwarnings("ignore", "Ray Client connection timed out", UserWarning)  # it raises as well
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            raise NoCluster(_shut_out(address, error)) from None
        if address is None and ray.util.get_node_ip_address() != LOOPBACK:
            raise NoCluster(f"Ray {ray.__version__} listens to the network although it was told not to")
        return leave.pop_all().close


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Lend a folder for a cluster's sockets and logs. It goes with this process, and so do the actors and agents there.

    Of Ray's processes most end with ours, whatever ends it. Two agents first report to a server that is dead too, for a
    minute that no setting shortens: another process sees our end and ends them.
    """
    # The names of Ray's sockets are long and those of the system short. Ray opens its folder to everybody: it gets one
    # inside another that only we may enter.
    room = os.path.realpath("/tmp") if os.name == "posix" else None  # noqa: S108 - files are known by their real names
    folder = tempfile.mkdtemp(prefix="atoll-ray-", dir=room)
    command = [sys.executable, "-I", "-S", sweep.__file__, folder]
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # Ctrl-C and what else is sent to a terminal's processes must not end it before us.
    with subprocess.Popen(command, stdin=subprocess.PIPE, **silent, start_new_session=True):  # noqa: S603
        yield os.path.join(folder, "r")


def _knock(address: str) -> None:
    """Find out in seconds that nobody is there: Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # "auto", or a name that Ray knows
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        raise NoCluster(_shut_out(address, error)) from None


def _shut_out(address: str | None, error: Exception) -> str:
    """Say why there is no way into a cluster, and what to do."""
    if "Version mismatch" in str(error):
        # Ray says it in six lines: its own version and Python's, there and here.
        found = [f"{name} {number}" for name, number in re.findall(r"(Ray|Python): (\S+)", str(error))]
        there, here = " and ".join(found[:2]), " and ".join(found[2:])
        return f"the Ray cluster at {address} has {there}, this process has {here}: install the same on both sides"
    if address is None:
        return f"Ray cannot start on this machine ({_line(error)}): without Ray the same run is atoll run --workers N"
    if address == "auto":
        why = "" if "Could not find any running" in str(error) else f" ({_line(error)})"
        return f"no Ray cluster on this machine{why}: start one with ray start --head, or name none (--on ray)"
    port = "its client port, 10001 by default" if address.startswith("ray://") else "its own port, 6379 by default"
    return f"no Ray cluster at {address} ({_line(error)}): start one there with ray start --head, and name {port}"


def _private() -> dict[str, str]:
    """Settings of a cluster of one machine: no telemetry, the loopback only (read once, at import), a password."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _token(),
    }


@lru_cache(maxsize=1)
def _import_privately() -> bool:
    """Import Ray with the settings of a private cluster, as it reads them once; say whether this came in time."""
    in_time = "ray" not in sys.modules
    _ray()
    return in_time


def _answer_to_sigterm(how: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, how)


@lru_cache(maxsize=1)
def _token() -> str:
    # Ray remembers the first token of a process: a second cluster must have the same one.
    return os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)


def _stay() -> None:
    pass


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError("a Ray cluster needs Ray: pip install 'atoll[ray]'") from None
    return ray
