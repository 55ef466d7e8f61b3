"""The command line: one file a verb. Heavy imports stay inside the verbs, so that help is instant."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `atoll`."""
    from atoll.cli.app import app, known
    from atoll.cli.exits import exit_code
    from atoll.report.shown import shown

    try:
        sys.exit(app(standalone_mode=False) or 0)  # Ctrl-C comes back as 130
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sentence = known(error)
        if sentence is None:
            raise
        sys.stderr.write(f"atoll: {shown(sentence)}\n")
        sys.exit(exit_code(error))
