"""A line between a party and its server that changes nothing and counts the bytes that pass, in both directions."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter


class CountingProxy:
    """Listens on loopback and hands connections on; `moved` has the bytes "up" to the server and "down" from it."""

    def __init__(self, to: str) -> None:
        host, port = to.rsplit(":", 1)
        self._to, self._lock, self.moved = (host, int(port)), threading.Lock(), Counter[str]()
        self._ends = [listener := socket.create_server(("127.0.0.1", 0))]
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(self._to)
                self._ends += [near, far]
                for way, ends in {"up": (near, far), "down": (far, near)}.items():
                    threading.Thread(target=self._pass_on, args=(way, *ends), daemon=True).start()

    def _pass_on(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one end has gone
            while piece := source.recv(1 << 16):
                with self._lock:
                    self.moved[way] += len(piece)
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
