"""What a lying server's welcome may do to a party: import nothing that was not allowed, and take no memory."""

from __future__ import annotations

import pytest

from atoll.core.question import Fault
from atoll.job.catalogue import BadJob
from atoll.runtimes.network.messages.envelope import Welcome, read_envelope, write_envelope
from atoll.runtimes.network.party.policy import Policy
from atoll.runtimes.network.party.roles import RoleSession, role_of


def test_a_program_of_a_servers_text_imports_no_module() -> None:
    job = 'name = "x"\nrounds = 1\nprogram = { use = "this:Zen" }\nroles = { A = "ada" }\n'
    with pytest.raises(BadJob, match="imported by a job file of one's own machine only"):
        role_of(RoleSession(Policy(), job, "ada", 0))


@pytest.mark.parametrize("lie", [{"number": 2**40}, {"members": {"ada": 2**40}}, {"classes": 2**40}])
def test_a_number_that_no_federation_has_is_refused_before_it_is_used(lie: dict[str, object]) -> None:
    said = Welcome(**{"run": "r", "number": 0, "job": "", "manifest": bytes(32), "answers": {}, **lie})  # type: ignore[arg-type]
    with pytest.raises(Fault, match="the bytes are no Welcome"):
        read_envelope(Welcome, write_envelope(said))
