"""A bad line between parties and a server: it delays, loses, resets, stalls, is cut; what it passes on is unchanged."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from typing import Any

CHUNK = 1 << 16
UNDER_WAY = 64  # pieces of data in each direction of a line
AGAIN = 0.2  # seconds after which TCP at the earliest sends again what was lost; each time it waits twice as long


class Proxy:
    """Listens on loopback and hands connections on. `reset` and `stall` are chances of each piece of data that comes.

    A stalled connection swallows what comes later in both directions and stays open: neither end is told. While the
    line is `cut`, pieces wait, as they do where packets are sent again until the network is back. `loss` is the chance
    of a piece to be lost each time it is sent: it comes late, and what was sent after it waits for it. `rate` is how
    many bytes a second each connection passes on, each way.
    """

    def __init__(
        self, to: str, *, seed: int = 0, delay: float = 0.0, loss: float = 0.0, reset: float = 0.0, stall: float = 0.0,
        rate: float = 0.0,
    ) -> None:  # fmt: skip
        self._host, port = to.rsplit(":", 1)
        self._port, self._chance = int(port), random.Random(seed)
        self.delay, self.loss, self.reset, self.stall = delay, loss, reset, stall
        self.rate = rate
        self.seen = Counter[str]()
        self._lines = set[_Line]()
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._whole.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._handle, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.set)

    def stall_all(self) -> None:
        """Let every connection of this moment swallow what comes."""
        self._loop.call_soon_threadsafe(lambda: [line.stall() for line in self._lines])

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen["connections"] += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        line = _Line(self, (writer, far_writer))
        self._lines.add(line)
        try:
            async with asyncio.TaskGroup() as both:
                for one, other in ((reader, far_writer), (far_reader, writer)):
                    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY)
                    both.create_task(line.take(one, under_way))
                    both.create_task(line.give(under_way, other))
        except* OSError:
            pass  # one end has gone
        finally:
            self._lines.discard(line)
            line.drop()

    def draw(self) -> str:
        """What happens to a piece of data."""
        number = self._chance.random()
        fate = "reset" if number < self.reset else "stall" if number < self.reset + self.stall else "passed"
        self.seen[fate] += 1
        return fate

    def late(self) -> float:
        """How many seconds a piece of data is on its way."""
        late, again = self.delay, AGAIN
        while self.loss and self._chance.random() < self.loss:
            self.seen["lost"] += 1
            late, again = late + again, 2 * again
        return late

    async def whole(self) -> None:
        await self._whole.wait()


class _Line:
    """One connection, both directions."""

    def __init__(self, proxy: Proxy, ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self._proxy, self._ends, self._stalled = proxy, ends, False

    def stall(self) -> None:
        self._stalled = True

    def drop(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def take(self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Let data begin its way, as fast as the line is wide."""
        rate = self._proxy.rate
        piece = b"some"
        while piece:
            piece = await reader.read(min(CHUNK, max(1024, int(rate / 20))) if rate else CHUNK)
            if rate:
                await asyncio.sleep(len(piece) / rate)
            await under_way.put((asyncio.get_running_loop().time() + self._proxy.late(), piece))

    async def give(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Let data arrive, in the order in which it was sent."""
        while True:
            due, piece = await under_way.get()
            if (left := due - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(left)
            await self._proxy.whole()
            if not piece:
                break
            fate = self._proxy.draw() if not self._stalled else "stall"
            if fate == "reset":
                for end in self._ends:  # nothing is sent any more, not even that it is over
                    linger = struct.pack("ii", 1, 0)
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                raise ConnectionResetError
            if fate == "stall":
                self._stalled = True
                continue
            writer.write(piece)
            await writer.drain()
        if not self._stalled:
            writer.close()
