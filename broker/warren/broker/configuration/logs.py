"""How the broker's log is written: lines of text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from warren.broker.configuration.keys import LogConfig


def write_logs(config: LogConfig) -> None:
    """Write this process's log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    if config.log_json:
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])


class JsonLines(logging.Formatter):
    """Time (RFC 3339, UTC), level, logger and message; an exception as text."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
