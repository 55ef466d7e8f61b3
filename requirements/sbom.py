"""Write the software bill of materials of the lock files, in CycloneDX's JSON: `python requirements/sbom.py`.

It is a function of start.txt, check.txt and the version of Atoll: the same locks give the same bytes.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
_LOCKED = re.compile(r"(?:# by version: )?(?P<name>[a-z0-9-]+)==(?P<version>[^ ]+)")


def locked(command: str) -> dict[tuple[str, str], list[str]]:
    """Read a lock: the hashes of what it installs, by name and version."""
    found = {}
    for line in (HERE / f"{command}.txt").read_text(encoding="utf-8").splitlines():
        if said := _LOCKED.match(line):
            found[said["name"], said["version"]] = re.findall(r"--hash=sha256:([0-9a-f]{64})", line)
    return found


def bill() -> str:
    """Write the bill: what `./start` installs is required, what `./check` adds is optional."""
    source = (HERE.parent / "src" / "atoll" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "([^"]+)"', source)
    assert version
    own = {"type": "application", "name": "atoll", "version": version[1], "bom-ref": f"pkg:pypi/atoll@{version[1]}"}
    start, check = locked("start"), locked("check")
    parts = [
        {
            "type": "library", "name": name, "version": version, "bom-ref": f"pkg:pypi/{name}@{version}",
            "purl": f"pkg:pypi/{name}@{version}", "scope": "required" if (name, version) in start else "optional",
            **({"hashes": [{"alg": "SHA-256", "content": one} for one in hashes]} if hashes else {}),
        }
        for (name, version), hashes in sorted({**check, **start}.items())
    ]  # fmt: skip
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([own, parts], sort_keys=True))
    said = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {"component": {**own, "licenses": [{"license": {"id": "Apache-2.0"}}]}}, "components": parts,
    }  # fmt: skip
    return json.dumps(said, indent=1) + "\n"


if __name__ == "__main__":
    (HERE / "sbom.cdx.json").write_text(bill(), encoding="utf-8")
