"""Four calls between parties and a server, with parties only calling out: join, pull a question, push an answer, leave.

Everybody is known by the key behind the connection, at each message; nothing is read from anybody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from atoll.core.errors import AtollError, Unwritable
from atoll.crypto.keys import Refused, refuse_if
from atoll.report.shown import one_line
from atoll.runtimes.network.messages.awake import AwakeClock
from atoll.runtimes.network.messages.calls import (
    LIMITS,
    SERVICE,
    TIMES,
    CannotListen,
    HelloFirst,
    Later,
    Limits,
    RunFailed,
    RunOver,
    Service,
    Times,
    Unreachable,
    delays,
    settings,
)
from atoll.runtimes.network.messages.fair_semaphore import SLICE, FairSemaphore
from atoll.runtimes.network.messages.payload import CHUNK, Body, Header, Payload, QuestionPayload, messages_of, receive
from atoll.runtimes.network.trust.proxy import proxy_for
from atoll.runtimes.network.trust.roster import Unreadable
from atoll.runtimes.network.trust.tls import RENEW, Insecure, PartyTLS, ServerTLS, Unknown, grpc_library, split

if TYPE_CHECKING:
    import grpc

AWAY = 5.0  # seconds after which a party says that its server is away
SURE = 5  # handshakes in a row that seem to be refused, after which they are
CODE = "atoll-code"  # the metadata in which a server says which error it is
REFUSALS: dict[object, type[Refused]] = {kind.code: kind for kind in (Refused, Unknown, HelloFirst, RunOver, RunFailed)}
NAMED = re.compile(r"[a-z][a-z0-9_]{0,39}")  # a code
SENTENCE = 1000  # most characters of a reason that is sent
T = TypeVar("T")
log = logging.getLogger(__name__)


class ServerTransport:
    """The server's end of the line."""

    def __init__(
        self,
        address: str,
        credentials: ServerTLS | Insecure,
        service: Service,
        *,
        limits: Limits = LIMITS,
        times: Times = TIMES,
        folder: Path | None = None,
    ) -> None:
        self._host = address.rpartition(":")[0]
        split(address)
        self._address, self._credentials, self._service = address, credentials, service
        self._limits, self._times, self._folder = limits, times, folder
        self._lock = threading.Lock()
        self._pulls: dict[str, object] = {}
        self._uploads: set[str] = set()
        self._until: dict[grpc.ServicerContext, float] = {}
        self._bodies = FairSemaphore(limits.bodies)
        self._clock = AwakeClock()
        self._stopped = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> str:
        """Begin to serve; gives the address, with the port that was found if 0 was asked for."""
        grpc = grpc_library()
        _share_heaps()
        options = [
            *settings(self._times),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", self._limits.streams),
            ("grpc.server_handshake_timeout_ms", int(self._times.silence * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_ping_strikes", 0),
        ]
        self._pool = ThreadPoolExecutor(self._limits.threads, "atoll-call")
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=self._limits.threads)
        handlers = {
            "Join": grpc.unary_unary_rpc_method_handler(self._join),
            "Pull": grpc.unary_stream_rpc_method_handler(self._pull),
            "Push": grpc.stream_unary_rpc_method_handler(self._push),
            "Leave": grpc.unary_unary_rpc_method_handler(self._leave),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            port = self._credentials.bind(self._server, self._address)
        except RuntimeError:
            raise CannotListen(f"cannot listen on {self._address}: is another server running there?") from None
        self._server.start()
        threading.Thread(target=self._hurry, name="atoll-hurry", daemon=True).start()
        return f"{self._host}:{port}"

    def allow(self, limits: Limits) -> None:
        """Take bodies as long as these limits say, from now on: with more parties there are longer answers."""
        self._limits = replace(self._limits, body=limits.body)

    def stop(self, grace: float | None = None) -> None:
        """Let calls end for `grace` seconds, then end them."""
        self._stopped.set()
        if self._server:
            self._server.stop(self._times.grace if grace is None else grace).wait()
            self._pool.shutdown(wait=False)

    def _join(self, hello: bytes, context: grpc.ServicerContext) -> bytes:
        with self._admitted(context) as name:
            return self._service.hello(name, hello)

    def _leave(self, said: bytes, context: grpc.ServicerContext) -> bytes:
        with self._admitted(context) as name:
            self._service.goodbye(name, said)
            return b""

    def _pull(self, asked: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._admitted(context) as name, self._newest_pull(name, context) as wanted:
            question = self._question(name, asked, context, wanted)
            if question:
                with self._under_way(name, context, wanted) as alive:
                    for message in messages_of(question.header, question.body):
                        alive()
                        yield message

    def _push(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._admitted(context) as name, self._only_upload(name):
            with self._under_way(name, context, lambda: self._stays(context)) as alive:

                def checked() -> Iterator[bytes]:
                    for message in messages:
                        alive()
                        yield message

                payload = self._received(checked())
            if payload is None:
                raise Refused("an answer without a header")
            with payload:
                return self._service.answer(name, payload.header, payload.body)

    def _received(self, messages: Iterator[bytes]) -> Payload | None:
        try:
            return receive(messages, self._limits.body, self._limits.memory, self._folder)
        except AtollError:
            raise
        except OSError as error:
            remedy = "free some space: who sends an answer tries again"
            raise Unwritable(f"cannot write to {self._folder}: {error.strerror}; {remedy}") from None

    def _question(
        self, name: str, asked: bytes, context: grpc.ServicerContext, wanted: Callable[[], bool]
    ) -> QuestionPayload | None:
        """Wait in slices: a caller that left, lost its line in the roster or called anew waits no more."""
        try:
            wait = msgspec.msgpack.decode(asked, type=float)
        except (msgspec.DecodeError, ValueError):
            raise Refused("a pull says how many seconds it would wait") from None
        refuse_if(not 0 <= wait < math.inf, f"wait={wait}: a pull waits for a while, not for ever")
        crowded = len(self._pulls) > 3 * self._limits.threads // 4
        until = time.monotonic() + (0.0 if crowded else min(wait, self._times.wait))
        while True:
            left = until - time.monotonic()
            question = self._service.next_question(name, max(0.0, min(left, SLICE)))
            self._credentials.name(context)
            if not wanted():
                return None
            if question or left <= SLICE:
                return question

    def _stays(self, context: grpc.ServicerContext) -> bool:
        return not self._stopped.is_set() and bool(context.is_active())

    @contextlib.contextmanager
    def _newest_pull(self, name: str, context: grpc.ServicerContext) -> Iterator[Callable[[], bool]]:
        """Of all the pulls of one party the newest is served: says whether this one still is."""
        mine = object()
        with self._lock:
            self._pulls[name] = mine
        try:
            yield lambda: self._stays(context) and self._pulls.get(name) is mine
        finally:
            with self._lock:
                if self._pulls.get(name) is mine:
                    del self._pulls[name]

    @contextlib.contextmanager
    def _admitted(self, context: grpc.ServicerContext) -> Iterator[str]:
        """Who calls, for as long as it may; whatever goes wrong inside ends the call with a sentence."""
        grpc = grpc_library()
        status, code = grpc.StatusCode.INTERNAL, AtollError.code
        sentence = "the server failed at this call; its log says why"
        try:
            yield self._credentials.name(context)
            return
        except grpc.RpcError:
            raise  # the caller is gone
        except Later as reason:
            status, code, sentence = grpc.StatusCode.UNAVAILABLE, reason.code, str(reason)
        except Unreadable as error:
            log.error("nobody is let in: %s", error)
            status, code = grpc.StatusCode.UNAVAILABLE, error.code
            sentence = "the server cannot read its roster just now"
        except Unwritable as error:
            log.error("an answer is not taken: %s", error)
            self._service.unwritten(str(error))
            status, code = grpc.StatusCode.UNAVAILABLE, error.code
            sentence = "the server cannot write to its disk just now"
        except Unknown as reason:
            status, code, sentence = grpc.StatusCode.UNAUTHENTICATED, reason.code, str(reason)
            log.warning("refused a call from %s: %s", context.peer(), reason)
        except Refused as reason:
            status, code, sentence = grpc.StatusCode.FAILED_PRECONDITION, reason.code, str(reason)
        except Exception:
            log.exception("a call from %s failed", context.peer())
        context.set_trailing_metadata(((CODE, code),))
        context.abort(status, sentence[:SENTENCE])

    @contextlib.contextmanager
    def _only_upload(self, name: str) -> Iterator[None]:
        with self._lock:
            if name in self._uploads:
                raise Later(f"another answer of {name} is still on its way")
            self._uploads.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._uploads.discard(name)

    @contextlib.contextmanager
    def _under_way(
        self, name: str, context: grpc.ServicerContext, wanted: Callable[[], bool]
    ) -> Iterator[Callable[[], None]]:
        """A body on its way, when its turn has come: each chunk in time, from one who may still call.

        Who has had a turn for long lets others go first, so that slow lines hold up nobody.
        """

        def waits() -> None:
            if not wanted():
                raise Later("the call ended before the turn of its body came")
            self._service.here(name)

        turn = self._bodies.take(waits)
        spare, last = self._times.answer, self._clock()  # seconds; each chunk brings as many as the slowest line needs

        def alive() -> None:
            nonlocal turn, spare, last
            spare += self._times.moving(CHUNK) - (self._clock() - last)
            if turn.began + self._times.silence < time.monotonic() and self._bodies.wanted:
                with self._lock:
                    self._until.pop(context, None)
                self._bodies.give(turn)
                turn = self._bodies.take(waits)
            last = self._clock()  # to wait for a turn is no fault of a line
            with self._lock:
                self._until[context] = last + min(spare, self._times.lull)
            waits()
            self._credentials.name(context)

        try:
            alive()
            yield alive
        finally:
            self._bodies.give(turn)
            with self._lock:
                self._until.pop(context, None)

    def _hurry(self) -> None:
        """End the calls whose time is over, and give back the memory that bodies have left."""
        while not self._stopped.wait(SLICE / 2):
            now = self._clock()
            with self._lock:
                late = [context for context, until in self._until.items() if now > until]
                moving = bool(self._until)
            if moving:
                _give_back()
            for context in late:
                log.warning("gave up a body from or to %s that did not move on", context.peer())
                context.cancel()


def _share_heaps() -> None:
    """Let all threads use two heaps: with some for each, what chunks leave behind in one is of no use to the others."""
    if tune := _of_glibc("mallopt"):
        tune(-8, 2)  # M_ARENA_MAX


def _give_back() -> None:
    """Let the system have what is free in the heaps: gRPC keeps a chunk for every line, and holes between them."""
    if trim := _of_glibc("malloc_trim"):
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


class _Seemingly(Refused):
    """What a handshake seems to say: a server that is killed in the middle of one, or a bad line, looks the same."""

    code = "handshake"


class PartyTransport:
    """A party's end of the line. What can be repeated is tried again until `times.patience` is over."""

    def __init__(
        self,
        address: str,
        credentials: PartyTLS | Insecure,
        *,
        limits: Limits = LIMITS,
        times: Times = TIMES,
        folder: Path | None = None,
        proxy: str | None = None,
    ) -> None:
        self._proxy = proxy_for(split(address)[0], proxy)
        self._address, self._credentials = address, credentials
        self._limits, self._times, self._folder = limits, times, folder
        self._lock = threading.Lock()
        self._made = -math.inf
        self._channel: grpc.Channel | None = None

    def hello(self, hello: bytes) -> bytes:
        return self._persist(lambda: self._unary("Join", hello))

    def pull(self, wait: float | None = None) -> Payload | None:
        """The next question, or None if there is none within `wait` seconds."""
        until = time.monotonic() + (self._times.wait if wait is None else wait)
        for pause in delays(secrets.randbits(64)):
            payload = self._persist(lambda: self._pulled(max(0.0, until - time.monotonic())))
            if payload or time.monotonic() + pause >= until:
                return payload
            time.sleep(pause)  # a crowded server does not hold calls
        raise AssertionError("delays never end")

    def push(self, header: Header, body: Body) -> bytes:
        """Deliver an answer; gives the server's receipt."""

        def once() -> bytes:
            call = self._line().stream_unary(f"/{SERVICE}/Push")
            within = self._times.answer + self._times.moving(header.size)
            return bytes(call(messages_of(header, body), timeout=within, metadata=self._credentials.metadata))

        return self._persist(once)

    def leave(self, said: bytes = b"") -> None:
        """Say goodbye, once."""
        grpc = grpc_library()
        began = time.monotonic()
        try:
            self._unary("Leave", said)
        except grpc.RpcError as error:
            raise self._meaning(error, time.monotonic() - began) from None

    def hurry(self, patience: float) -> None:
        """Try to reach the server no longer than this, from the next call on: it may be gone for good."""
        self._times = replace(self._times, patience=min(self._times.patience, patience))

    def told(self, successor: bytes) -> bool:
        """Trust the server's next key, should this be news; connections made from now on do."""
        new = self._credentials.told(successor)
        if new:
            self.close()
        return new

    def close(self) -> None:
        with self._lock:
            if self._channel:
                self._channel.close()
            self._channel, self._made = None, -math.inf

    def _unary(self, call: str, message: bytes) -> bytes:
        made = self._line().unary_unary(f"/{SERVICE}/{call}")
        return bytes(made(message, timeout=self._times.silence, metadata=self._credentials.metadata))

    def _pulled(self, wait: float) -> Payload | None:
        call = self._line().unary_stream(f"/{SERVICE}/Pull")(
            msgspec.msgpack.encode(wait),
            timeout=wait + self._times.answer + self._times.moving(self._limits.body),
            metadata=self._credentials.metadata,
        )
        try:
            return receive(call, self._limits.body, self._limits.memory, self._folder)
        finally:
            call.cancel()

    def _line(self) -> grpc.Channel:
        """The channel. One that has grown old is left to end by itself, before its certificate does."""
        with self._lock:
            if time.monotonic() - self._made > RENEW:
                options: list[tuple[str, int | str]] = [
                    *settings(self._times),
                    ("grpc.enable_http_proxy", int(self._proxy is not None)),
                    *([("grpc.http_proxy", self._proxy)] if self._proxy else []),
                    ("grpc.service_config_disable_resolution", 1),
                    ("grpc.enable_retries", 0),
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    # How long one handshake may take: many who come back at once wait in line, and who gives up
                    # and calls again makes the line longer.
                    ("grpc.min_reconnect_backoff_ms", int(self._times.silence * 1000)),
                    ("grpc.max_reconnect_backoff_ms", 2000),
                ]
                self._channel = self._credentials.channel(self._address, options)
                self._made = time.monotonic()
            return self._channel

    def _persist(self, once: Callable[[], T]) -> T:
        """Try until it works, is refused, or patience ends."""
        grpc = grpc_library()
        first, told, seemingly = time.monotonic(), False, 0
        until = first + self._times.patience
        for pause in delays(secrets.randbits(64)):
            began = time.monotonic()
            try:
                return once()
            except grpc.RpcError as error:
                meaning = self._meaning(error, time.monotonic() - began)
            seemingly = seemingly + 1 if isinstance(meaning, _Seemingly) else 0
            sure = isinstance(meaning, Refused) and seemingly in (0, SURE)
            if sure or time.monotonic() + pause > until:
                raise meaning
            if began - first > AWAY and not told:
                told = True
                log.warning("%s: this party waits, and tries again until it does (--patience limits that)", meaning)
            time.sleep(pause)
        raise AssertionError("delays never end")

    def _meaning(self, error: grpc.RpcError, took: float) -> AtollError:
        """Refused, if the server or a handshake says so; else Unreachable. `took`: seconds until the call failed."""
        grpc = grpc_library()
        status, said = error.code(), one_line(error.details() or "")[:SENTENCE]
        code = dict(error.trailing_metadata() or ()).get(CODE)
        if status == grpc.StatusCode.UNAUTHENTICATED:
            return Unknown(said)
        if status == grpc.StatusCode.FAILED_PRECONDITION:
            return refusal(code, said)
        if status == grpc.StatusCode.UNIMPLEMENTED:
            return Refused(f"the server at {self._address} does not speak {SERVICE}: upgrade the older of the two")
        # A line that was turned down at once, by no server of ours, is looked into with another handshake: it also
        # finds out that nobody listens. A server that is slow is left alone.
        turned_down = status == grpc.StatusCode.UNAVAILABLE and code is None and took < self._times.silence / 2
        trouble = self._credentials.trouble(self._address, self._proxy) if turned_down else None
        if trouble:
            return _Seemingly(trouble)
        return Unreachable(f"the server at {self._address} does not answer ({status.name.lower()}: {said})")


def refusal(code: object, sentence: str) -> Refused:
    """Make the refusal that a server has named by its code; one that is not known here is Refused with that code."""
    refused = REFUSALS.get(code, Refused)(sentence)
    if isinstance(code, str) and NAMED.fullmatch(code):  # whatever a server sends goes no further than this
        refused.code = code
    return refused
