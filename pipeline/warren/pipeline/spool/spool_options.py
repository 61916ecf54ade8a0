"""Options for reading a queue continuously through a spool: files to which messages are written before they are
acknowledged, and which keep them until Spark has processed them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from warren.pipeline.broker_connection import Address
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import missing_option, parse_count, parse_seconds, queue_name, quoted
from warren.pipeline.spool.deduplication_key import key_extractor

OPTIONS = (
    "url",
    "queue",
    "spoolDir",
    "dedupKey",
    "dedupWindow",
    "maxMessagesPerTrigger",
    "prefetch",
    "spoolMaxBytes",
    "timeout",
)
WINDOW = 200_000
MAX_BYTES = 1024 * 1024 * 1024
PREFETCH = 5_000
MOST = 65_535
"""Largest accepted prefetch: `basic.qos` carries 16 bits."""


@dataclass(frozen=True)
class SpoolOptions:
    """Queue to read, folder of its spool (files to which messages are written before they are acknowledged), and
    limits.

    :param key: property (such as `message_id`) or `header:NAME` by which a redelivered message is recognised
    :param window: minimum number of deduplication keys to remember, also after their messages have left the spool
    :param per_trigger: maximum number of messages of a micro-batch; None is no limit
    :param max_bytes: bytes of messages in the spool that Spark has not processed, from which on no more messages are
        written and acknowledged
    :param prefetch: maximum number of unacknowledged messages
    """

    address: Address
    queue: str
    folder: Path
    key: str = "message_id"
    window: int = WINDOW
    per_trigger: int | None = None
    max_bytes: int = MAX_BYTES
    prefetch: int = PREFETCH

    @staticmethod
    def from_options(given: Mapping[str, str]) -> SpoolOptions:
        """Parse the options of the data source for reading a queue through a spool (option `spoolDir`).

        :param given: options with lower-case names
        :raises PipelineError: if an option is unknown, missing or not valid
        """
        if unknown := sorted(given.keys() - {name.lower() for name in OPTIONS}):
            raise PipelineError(
                f"format 'amqp' has no option {unknown[0]!r} for a spool; there are: {', '.join(OPTIONS)}"
            )
        if missing := [name for name in ("url", "queue", "spoolDir") if not given.get(name.lower())]:
            raise PipelineError(missing_option(missing[0], given))
        key_extractor(given.get("dedupkey", "message_id"))
        prefetch = parse_count(given, "prefetch", PREFETCH)
        if prefetch > MOST:
            raise PipelineError(f"prefetch is {prefetch}: AMQP allows {MOST} at most")
        return SpoolOptions(
            Address(given["url"], parse_seconds("timeout", given.get("timeout", "30"))),
            queue_name("queue", given["queue"]),
            folder_of(given["spooldir"]),
            given.get("dedupkey", "message_id"),
            parse_count(given, "dedupWindow", WINDOW),
            parse_count(given, "maxMessagesPerTrigger", 1) if "maxmessagespertrigger" in given else None,
            parse_count(given, "spoolMaxBytes", MAX_BYTES, "bytes"),
            prefetch,
        )

    @property
    def description(self) -> str:
        """Name of the queue and URL of the broker for error messages, without a password."""
        return f"queue {self.queue!r} at {self.address.masked_url}"


def folder_of(text: str) -> Path:
    """Return the folder that an absolute path or a `file:` URL names.

    :raises PipelineError: if the text is neither
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    path = unquote(parts.path) if parts.scheme == "file" and parts.netloc in ("", "localhost") else text
    if not os.path.isabs(path) or "\0" in path:
        raise PipelineError(
            f"spoolDir is {quoted(text)}: it must be the absolute path of a folder, on a file system that the driver and "
            "all executors have mounted"
        )
    return Path(path)
