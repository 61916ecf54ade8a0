"""Log set-up of a process: lines of text, or one JSON object a line.

Every log call of Warren has a literal template of one grammar:

    logger.warning("event=consumer.lost queue=%s reason=%s", queue, reason)

`event=<component>.<past_tense_verb>` comes first, then any number of `key=%s`, and nothing else. Each key has one
placeholder; `%d`, `%r` and `%.1f` are allowed, too. docs/log-events.md lists all events.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

from warren.core.text_escapes import escape, escape_lines, json_text

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
"""Format of a log record as a line of text, for `logging.Formatter`."""

TEMPLATE: Final = re.compile(
    r"event=([a-z][a-z_]*\.[a-z][a-z_]*)((?: [a-z][a-z0-9_]*=%[-+#0]*[\d.]*[sdrgfx])*)"
)
"""Pattern of the template of a log call; its groups are the event, and all fields (` key=%s`) as one text."""

_KEY: Final = re.compile(r" ([a-z0-9_]+)=%")


def write_logs(level: str, *, as_json: bool) -> None:
    """Write this process's log to standard error.

    :param level: name of the lowest level that is written, such as "info"
    :param as_json: one JSON object a line (see `JsonLines`) instead of text
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class TextLines(logging.Formatter):
    """Log formatter that writes one line of text for each record, and indents a traceback after it.

    Text from messages cannot forge a line or control a terminal: control characters are escaped, line breaks included, and
    each line of a traceback begins with blanks.
    """

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        parts = [escape(self.formatMessage(record))]
        # Not with the base class, which keeps the text of a traceback in the record, for all formatters.
        if record.exc_info:
            parts.append(_indented(self.formatException(record.exc_info)))
        if record.stack_info:
            parts.append(_indented(self.formatStack(record.stack_info)))
        return "\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in escape_lines(text).split("\n"))


class JsonLines(logging.Formatter):
    """Log formatter that writes one JSON object a line: `time` (RFC 3339, UTC), `level`, `logger` and `message`.

    A record of Warren's own grammar also has `event` and its `fields`. A record inside a span of OpenTelemetry has
    `trace_id` and `span_id`, a record of an exception has `exception`, the traceback as text.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = split_event(record)
        if event is not None:
            line["event"], line["fields"] = event
        line |= _trace()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # The formatter does not know its stream, whose encoding may lack characters: those beyond ASCII are escaped.
        return json_text(line, ascii_only=True)


def split_event(record: logging.LogRecord) -> tuple[str, dict[str, object]] | None:
    """Return (event, fields by name) of a log record; None if its template is not of the form `event=... key=%s`.

    The fields come from the record's arguments, not from its text: a value may contain anything. Text, numbers and
    booleans keep their types; any other value is converted to text.
    """
    template = TEMPLATE.fullmatch(str(record.msg))
    if template is None:
        return None
    keys = _KEY.findall(template[2])
    values = record.args if isinstance(record.args, tuple) else (record.args,)
    if len(keys) != len(values):
        return None
    plain = (value if isinstance(value, str | int | float | bool) else str(value) for value in values)
    return template[1], dict(zip(keys, plain, strict=True))


def _trace() -> dict[str, str]:
    """Return `trace_id` and `span_id` of OpenTelemetry's current span in hexadecimal digits; empty if there is none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
