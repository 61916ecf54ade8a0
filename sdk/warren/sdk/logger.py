"""The SDK's logger; its records contain only text that every handler can write."""

from __future__ import annotations

import logging


class Printable(logging.Filter):
    """Logging filter that replaces bytes that are not UTF-8 by escapes such as `\\udce9`.

    Strings from foreign messages may contain such bytes, as surrogates; a handler that
    writes UTF-8 would fail on them and lose the record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not message.isascii():
            record.msg = message.encode("utf-8", "backslashreplace").decode()
            record.args = None
        return True


log: logging.Logger = logging.getLogger("warren.sdk")
log.addFilter(Printable())
