"""`atoll parts`: the packages that bring parts, as a line for a party's policy."""

from __future__ import annotations

import sys


def list_packages() -> None:
    """Print each package with its parts, and the line that allows those that have a digest."""
    from atoll.job.catalogue import BadJob
    from atoll.job.parts import installed, package_of, packages

    write, allowed = sys.stdout.write, []
    for name in packages():
        mine = [entry for entry in installed().values() if entry.package == name]
        write(f"# {name} {mine[0].version}: {', '.join(f'{entry.kind} {entry.name}' for entry in mine)}\n")
        try:
            allowed.append(f'"{name}" = "{package_of(name).digest}"')
        except BadJob as error:
            write(f"#   not for a policy: {error}\n")
    if not packages():
        write("# no installed package brings parts: they are found by the entry points atoll.parts\n")
    if allowed:
        write(f"parts = {{ {', '.join(allowed)} }}\n")
