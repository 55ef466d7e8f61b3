"""Processes that die with their parent, and one for a few pieces of work."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

from atoll.core.errors import AtollError

T = TypeVar("T")


class TooLong(AtollError, RuntimeError):
    """A piece of work that did not end in its time, or not at all."""

    code = "too_long"


class TooLarge(AtollError, MemoryError):
    """A piece of work that needs more memory than it was given."""

    code = "too_large"


class Subprocess:
    """A process beside this one for a few pieces of work: what it has imported and read is gone when it ends.

    Args:
        memory: bytes that it may have; None: as many as the system gives.
    """

    def __init__(self, memory: int | None = None) -> None:
        self._memory = memory
        self._line, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=_work, args=(theirs, os.getpid(), memory), daemon=True, name="atoll-subprocess"
        )
        with quiet_main("spawn"):
            self._process.start()
        theirs.close()

    def do(self, work: Callable[..., T], *given: Any, within: float) -> T:
        """Do one piece of work there, and return or raise what it does."""
        try:
            self._line.send((work, given))
            if not self._line.poll(within):
                raise TooLong(f"{work.__name__} was not done within {within:g} s, and was given up")
            found, failed = self._line.recv()
        except (EOFError, OSError):
            self._process.join(5)
            raise TooLong(f"{work.__name__} ended with code {self._process.exitcode}: too little memory?") from None
        if isinstance(failed, MemoryError):
            allowed = "there are" if self._memory is None else f"the {self._memory:,} bytes that it may have"
            raise TooLarge(f"{work.__name__.strip('_')} needs more memory than {allowed}, and was given up")
        if failed is not None:
            raise failed
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        self._process.kill()
        self._process.join(5)


def _work(line: Connection, parent: int, memory: int | None) -> None:
    settle(None, parent)
    if memory is not None and sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))  # what is written to, not what is mapped
    with contextlib.suppress(EOFError, OSError):
        while True:
            work, given = line.recv()
            try:
                line.send((work(*given), None))
            except Exception as error:
                line.send((None, error if _travels(error) else RuntimeError(f"{type(error).__name__}: {error}")))
    os._exit(0)


def _travels(error: Exception) -> bool:
    """Whether an error can be made again from what it is sent as; many with an __init__ of their own cannot."""
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), type(error))  # noqa: S301 - our own bytes
    except Exception:
        return False


def settle(core: int | None, parent: int) -> list[int]:
    """Become a good child: one core, one thread, gone when the parent is, deaf to Ctrl-C (the parent decides).

    Return the cores that the system says it has now. It has others where the one given is not to be had any more, and
    none are known where a process cannot choose.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
        if core is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {core})
        _keep_memory()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def _keep_memory() -> None:
    """Let freed memory be used again at once: to give it back and fetch it anew costs more than the work on it."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune:  # glibc
        tune(-3, 32 << 20)  # M_MMAP_THRESHOLD: vectors of models come from the heap
        tune(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: and the heap stays


@contextlib.contextmanager
def quiet_main(how: str) -> Iterator[None]:
    """Keep a spawned child from running the user's script again: what it needs is importable or pickled."""
    main = sys.modules["__main__"]
    names = ["__file__", "__spec__"] if how == "spawn" else []
    hidden: dict[str, Any] = {name: main.__dict__[name] for name in names if name in main.__dict__}
    for name in hidden:
        delattr(main, name)
    main.__dict__.setdefault("__spec__", None)
    try:
        yield
    finally:
        main.__dict__.update(hidden)
