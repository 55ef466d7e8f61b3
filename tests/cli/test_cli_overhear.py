"""What gRPC says of handshakes becomes a sentence; all else on the standard error stays as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

from atoll.cli.overhear import turned_away

LINE = "Handshake failed with error SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "its key is not in the roster"),
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "its certificate has expired; are both clocks right?"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "it showed no certificate"),
        ("WRONG_VERSION_NUMBER", "it did not speak TLS"),
        ("TLSV1_ALERT_UNKNOWN_CA", "it did not take this server for the one it expects"),
        ("SOMETHING_NEW", "1000007d:SSL routines:OPENSSL_internal:SOMETHING_NEW"),
    ],
)
def test_meanings(said: str, meaning: str) -> None:
    assert turned_away(LINE + said) == f"turned away a connection: {meaning}"


OTHERS = """
import logging, os, sys
from atoll.cli.overhear import overhearing
with overhearing():
    os.write(2, b"from beneath\\n")
    os.write(2, b"I1117 22:46:07.784787   11994 log.cc:102] of no interest\\n")
    for _ in range(50):
        os.write(2, b"I1117 22:46:07.800818   12001 x.cc:2563] Handshake failed with error:1:WRONG_VERSION_NUMBER\\n")
    print("from Python", file=sys.stderr)
os.write(2, b"afterwards\\n")
"""


def test_a_flood_is_one_line_a_second_and_other_lines_pass() -> None:
    done = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert {"from beneath", "from Python"} <= set(lines)
    assert lines[-1] == "afterwards"
    assert 1 <= lines.count("turned away a connection: it did not speak TLS") <= 2
    assert len(lines) <= 6
    assert "interest" not in done.stderr
