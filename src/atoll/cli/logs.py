"""What a verb that lasts says as it goes: lines for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError
from atoll.report.shown import shown

if TYPE_CHECKING:  # help is instant without NumPy
    from atoll.core.effects import Note

LONGEST = 4000  # characters of a text that is logged
Say = Callable[..., None]  # say(event, text, **facts): the text is for people, the rest for machines
log = logging.getLogger("atoll.cli")


class LogFormat(StrEnum):
    """How to say it."""

    text = "text"
    json = "json"


class JsonLines(logging.Formatter):
    """One object a line: time, level, event, then the facts. Facts are single words and numbers, never arrays."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
        }
        text = record.getMessage()
        said |= {"text": text[:LONGEST]} if text else {}
        said |= {name: value for name, value in single(getattr(record, "facts", {})).items() if name not in said}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)[-LONGEST:]
        return json.dumps(said)


def single(facts: Mapping[str, Any]) -> dict[str, object]:
    """Keep what is one word or one number; a list of numbers might be of a vector, and belongs in no log."""
    found: dict[str, object] = {}
    for name, value in facts.items():
        one = value.item() if getattr(value, "ndim", None) == 0 else value  # a number of NumPy's
        if isinstance(one, float) and not math.isfinite(one):
            found[name] = str(one)
        elif isinstance(one, str):
            found[name] = one[:LONGEST]
        elif one is None or isinstance(one, bool | int | float):
            found[name] = one
    return found


def log_note(note: Note) -> None:
    """Log what the journal is told: a sink."""
    facts = dict(note.facts) | ({"job": note.job.get("name")} if note.job else {})
    level = logging.WARNING if note.what in ("rejected", "declined", "refused", "waiting", "damaged") else logging.INFO
    log.log(level, "", extra={"event": note.what, "facts": facts})


@contextmanager
def speaking(form: LogFormat) -> Iterator[Say]:
    """Give the function to say things with. As JSON, what goes wrong is also a line of it, and so are warnings."""
    if form is LogFormat.text:
        if logging.lastResort is not None:  # it writes to the standard error that there is at that moment
            logging.lastResort.setFormatter(TextLines())
        yield _say_text
        return
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines on stderr are no JSON; what fails is raised anyway
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("atoll").setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield _say_json
    except Exception as error:
        from atoll.cli.app import known
        from atoll.cli.exits import Exit, exit_code

        sentence = known(error)
        facts = {"code": error.code} if isinstance(error, AtollError) else {}
        extra = {"event": "failed", "facts": facts}
        log.error(sentence or str(error), exc_info=None if sentence else error, extra=extra)
        raise SystemExit(exit_code(error) if sentence else Exit.crashed) from None


class TextLines(logging.Formatter):
    """Lines for people, in which a peer's text is text."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def _say_text(event: str, text: str, **facts: object) -> None:
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


def _say_json(event: str, text: str, **facts: object) -> None:
    log.info(text, extra={"event": event, "facts": facts})
