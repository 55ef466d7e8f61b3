"""Ray clusters: how to join one, or start a private one that leaves nothing behind. No actor lives here."""

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
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from atoll.core.errors import AtollError, NotInstalled
from atoll.runtimes.ray import sweep

LOOPBACK = "127.0.0.1"


class NoCluster(AtollError, RuntimeError):
    """There is no Ray cluster, or none that can do this work; the sentence says why."""

    code = "no_cluster"


def connect(address: str | None = None, cpus: int | None = None) -> Callable[[], None]:
    """Join the cluster at an address, or start one that only this machine and user reach; return how to leave.

    Without an address a cluster that this process has already joined is used, and left as it is.
    """
    address = None if address == "local" else address
    with contextlib.ExitStack() as leave, _environment(**private()) if address is None else contextlib.nullcontext():
        in_time = address is not None or _import_privately()
        ray = import_ray()
        if ray.is_initialized():
            if address is not None:
                raise NoCluster(f"address={address}: this process has joined a Ray cluster already; name no address")
            return stay
        leave.callback(_answer_to_sigterm, signal.getsignal(signal.SIGTERM))  # till then it is Ray's: an exit in order
        where: dict[str, Any] = {"address": address}
        if address is not None:
            knock(address)
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
    split = os.path.realpath("/tmp") if os.name == "posix" else None  # noqa: S108 - files are known by their real names
    folder = tempfile.mkdtemp(prefix="atoll-ray-", dir=split)
    command = [sys.executable, "-I", "-S", sweep.__file__, folder]
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # Ctrl-C and what else is sent to a terminal's processes must not end it before us.
    with subprocess.Popen(command, stdin=subprocess.PIPE, **silent, start_new_session=True):  # noqa: S603
        yield os.path.join(folder, "r")


def knock(address: str) -> None:
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
    # Of other versions Ray tells in lines of a name and a number: its own and Python's, there and here.
    found = [f"{name} {number}" for name, number in re.findall(r"^ *(Ray|Python): (\S+)$", str(error), re.MULTILINE)]
    if len(found) == 4:
        there, here = " and ".join(found[:2]), " and ".join(found[2:])
        return f"the Ray cluster at {address} has {there}, this process has {here}: install the same on both sides"
    if address is None:
        return f"Ray cannot start on this machine ({cause(error)}): without Ray the same run is atoll run --workers N"
    if address == "auto":
        remedy = "start one with ray start --head, or name none (--on ray)"
        return f"no Ray cluster on this machine ({cause(error)}): {remedy}"
    port = "its client port, 10001 by default" if address.startswith("ray://") else "its own port, 6379 by default"
    return f"no Ray cluster at {address} ({cause(error)}): start one there with ray start --head, and name {port}"


def private() -> dict[str, str]:
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
    import_ray()
    return in_time


def _answer_to_sigterm(how: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, how)


@lru_cache(maxsize=1)
def _token() -> str:
    # Ray remembers the first token of a process: a second cluster must have the same one.
    return os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)


def stay() -> None:
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


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise NotInstalled("a Ray cluster needs Ray: pip install 'atoll[ray]'") from None
    return ray


def cause(error: Exception) -> str:
    """Return the line of an error that says most: Ray's are long, and end with the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    unborn = isinstance(error, import_ray().exceptions.RayActorError) and error.actor_init_failed
    deep = unborn or "Traceback" in str(error)
    cause = lines[-1] if deep else lines[0] if lines else ""
    return f"{type(error).__name__}: {cause}".rstrip(":. ")
