"""How a process writes its log: lines of text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

_FIELD: Final = re.compile(r"(\w+)=(.*?)(?=\s\w+=|$)")
_PLACE: Final = re.compile(r"%[^%a-zA-Z]*[a-zA-Z]")
"""A place for one argument in a message; `%%` is none, and no message of ours has it."""


def write_logs(level: str, *, as_json: bool) -> None:
    """Write this process's log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class JsonLines(logging.Formatter):
    """Time (RFC 3339, UTC), level, logger and message; an exception as text.

    A message of the form `consumer lost: queue=billing reason=...` also has its parts: `event`, which never changes for
    one kind of event, and `fields`. Inside a span of OpenTelemetry it has `trace_id` and `span_id`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event, fields = parts_of(record)
        if fields:
            line |= {"event": event, "fields": fields}
        line |= _trace()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def parts_of(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """The event and its fields, with the values that were logged where they are values of JSON, else as text."""
    event, separator, rest = str(record.msg).partition(": ")
    arguments = list(record.args) if isinstance(record.args, tuple) else []
    if not separator or _PLACE.search(event):
        return record.getMessage(), {}
    fields: dict[str, object] = {}
    for name, value in _FIELD.findall(rest):
        count = len(_PLACE.findall(value))
        taken, arguments = tuple(arguments[:count]), arguments[count:]
        if len(taken) < count:
            return record.getMessage(), {}
        plain = taken[0] if count == 1 and _PLACE.fullmatch(value) else None
        fields[name] = (
            plain if isinstance(plain, str | int | float | bool) else (value % taken if count else value)
        )
    return event, fields


def _trace() -> dict[str, str]:
    """Only where the program has loaded OpenTelemetry: what does not, does not need it for its log."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
