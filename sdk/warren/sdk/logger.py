"""The SDK's logger, whose records can always be written."""

from __future__ import annotations

import logging


class Printable(logging.Filter):
    """Shows bytes that are no UTF-8, which strings of foreign messages may hold as surrogates, as `\\udce9`.

    A handler that writes UTF-8 would fail on them, and the record be lost.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not message.isascii():
            record.msg = message.encode("utf-8", "backslashreplace").decode()
            record.args = None
        return True


log: logging.Logger = logging.getLogger("warren.sdk")
log.addFilter(Printable())
