"""How tests start processes: each in a session of its own, open to SIGINT, and killed with its children at the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

_started: list[Started | BaseProcess] = []


class Started(subprocess.Popen[Any]):
    """A process that leads its own session: what it starts can be killed with it."""

    def __init__(self, command: Sequence[Any], **how: Any) -> None:
        super().__init__(command, start_new_session=True, **how)
        _started.append(self)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None:  # the base class waits for the end, which may never come in a test that has failed
            _kill(self)
        super().__exit__(kind, value, trace)


def start(command: Sequence[Any], **how: Any) -> Started:
    """Start a command; takes what `subprocess.Popen` takes. The test's end kills it and its children."""
    return Started(command, **how)


def run(
    command: Sequence[Any],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **how: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end; takes what `subprocess.run` takes except `input`. A timeout kills its children too."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with start(command, **pipes, **how) as process:
        out, err = process.communicate(timeout=timeout)
    _kill(process)
    _started.remove(process)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def process(target: Callable[..., None], *args: Any) -> BaseProcess:
    """Start a process that calls a function. The test's end kills it and its children."""
    made = multiprocessing.get_context("spawn").Process(target=_lead, args=(target, args))
    made.start()
    _started.append(made)
    return made


def _lead(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.setsid()
    target(*args)


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Kill all that is started inside, with its children."""
    before, theirs = len(_started), set(multiprocessing.active_children())
    try:
        yield
    finally:
        for each in _started[before:]:
            _kill(each)
            if isinstance(each, subprocess.Popen):
                each.wait(10)
                for pipe in filter(None, (each.stdin, each.stdout, each.stderr)):
                    with contextlib.suppress(OSError):  # what was never written is lost
                        pipe.close()
            else:
                each.join(10)
        del _started[before:]
        for child in set(multiprocessing.active_children()) - theirs:  # the workers of a run in this process
            child.kill()
            child.join(10)


def _kill(leader: Started | BaseProcess) -> None:
    """Kill a process and its session; also children that it left behind when it ended."""
    assert leader.pid
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.kill()  # a process that does not lead its session yet


# --- what pytest takes from here --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test() -> Iterator[None]:
    with cleared():
        yield


def pytest_configure() -> None:
    """Let children be interrupted where this process is not: `nohup` and `trap '' INT` are inherited, a handler is not.

    A handler that does nothing leaves this process as deaf as it was, and exec gives its children the default again.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)
