"""HTTPS proxies: which one lies between a party and its server, and a tunnel through it. TLS stays end to end."""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit
from urllib.request import proxy_bypass

from atoll.crypto.keys import Refused
from atoll.report.shown import one_line

NONE = "none"
_ANSWER = 8192  # most bytes of a proxy's answer


class ProxyRefuses(Refused):
    """A proxy that does not let a party through to its server."""

    code = "proxy"


def proxy_for(host: str, said: str | None = None) -> str | None:
    """Return the proxy to reach a host by: the one that was said, else that of HTTPS_PROXY and NO_PROXY; None: none.

    Without a word a machine reaches itself directly.
    """
    if said == NONE:
        return None
    found = said or os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    if not found or (said is None and (_here(host) or proxy_bypass(host))):
        return None
    place(found)
    return found


def place(proxy: str) -> tuple[str, int]:
    """Return host and port of a proxy."""
    try:
        parts = urlsplit(proxy)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.scheme != "http":
        # A password may stand in it, which no log needs.
        raise Refused("the proxy cannot be: write http://HOST:PORT (--proxy, or HTTPS_PROXY), or --proxy none")
    return host, port


@contextmanager
def connected(host: str, port: int, proxy: str | None, within: float) -> Iterator[socket.socket]:
    """Open a line to a server, through a proxy if there is one."""
    if proxy is None:
        with socket.create_connection((host, port), timeout=within) as line:
            yield line
        return
    with socket.create_connection(place(proxy), timeout=within) as line:
        _tunnel(line, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", proxy)
        yield line


def _tunnel(line: socket.socket, target: str, proxy: str) -> None:
    parts, user = urlsplit(proxy), ""
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        user = f"Proxy-Authorization: Basic {base64.b64encode(secret).decode()}\r\n"
    line.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{user}\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n") and len(answer) < _ANSWER and (byte := line.recv(1)):
        answer += byte  # byte by byte: what follows is the server's
    first = answer.partition(b"\r\n")[0].decode("latin-1")
    if first.split()[1:2] != ["200"]:
        host, port = place(proxy)
        raise ProxyRefuses(
            f"the proxy at {host}:{port} does not connect to {target} ({one_line(first[:100]) or 'no answer'}): ask "
            "who runs it, or go round it with --proxy none"
        )


def _here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
