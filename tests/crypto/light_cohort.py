"""Users and a server of LightSecAgg, led up to the step that a test is about."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.crypto.keys import Identity
from atoll.crypto.light import STEPS, Light, LightClient, LightServer
from atoll.crypto.secagg import Abort

KNOWN = {i: Identity.new() for i in range(100)}


def light_run(n: int = 5, *, privacy: int = 1, target: int = 3, size: int = 7, **more: object) -> Light:
    roster = {i: KNOWN[i].public for i in range(n)}
    return Light(roster, privacy, target, size, more.pop("session", b"session"), **more)  # type: ignore[arg-type]


def clients_of(about: Light) -> dict[int, LightClient]:
    return {i: LightClient(about, i, KNOWN[i]) for i in about.roster}


def run_to(step: str, about: Light | None = None) -> tuple[dict[int, LightClient], LightServer, dict[int, bytes]]:
    """All clients and the server just before this step, and what the server tells each of them for it."""
    about = about or light_run()
    clients, server = clients_of(about), LightServer(about)
    told = dict.fromkeys(clients, b"")
    for now in STEPS[: STEPS.index(step)]:
        for i, client in clients.items():
            server.take(i, answer(client, now, told[i]))
        told = server.turn()
    return clients, server, told


def answer(client: LightClient, step: str, told: bytes) -> bytes:
    return client.answer(step, told, np.zeros(client.light.size, np.uint32))


def refuses(client: LightClient, step: str, told: bytes, words: str) -> None:
    """The client aborts with these words, and answers nothing more, not even what would have been right."""
    with pytest.raises(Abort, match=words):
        answer(client, step, told)
    for any_step in STEPS:
        with pytest.raises(Abort, match="the session is over"):
            answer(client, any_step, told)
