"""What a write is told: where the messages go, and how long to insist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.pipeline.broker_connection import Address
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import parse_bool, parse_count, parse_seconds

OPTIONS = ("url", "exchange", "routingKey", "mandatory", "confirmWindow", "writeId", "timeout")
SPARK_OPTIONS = frozenset(("checkpointlocation", "queryname"))
"""What Spark hands on to the sink of a streaming query although it is meant for Spark."""
WINDOW = 10_000
"""Messages that may be on their way, unconfirmed."""
WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes of such messages; one message is always allowed."""


@dataclass(frozen=True)
class Target:
    """Where the rows of a write go.

    :param exchange: of all messages; None if each row names its own. So is `routing_key`
    :param mandatory: whether a message that reaches no queue fails the write
    :param window: how many messages may be unconfirmed at a time
    :param write_id: what message ids are derived from, instead of what Spark calls this write
    """

    address: Address
    exchange: str | None = None
    routing_key: str | None = None
    mandatory: bool = True
    window: int = WINDOW
    write_id: str | None = None

    @staticmethod
    def from_options(given: Mapping[str, str]) -> Target:
        """The target that options name; their names in lower case.

        :raises PipelineError: for an option that there is not, or a value that cannot be meant
        """
        known = {name.lower() for name in OPTIONS}
        if unknown := sorted(given.keys() - known - SPARK_OPTIONS):
            raise PipelineError(
                f"format 'amqp' has no option {unknown[0]!r} for writing; there are: {', '.join(OPTIONS)}"
            )
        if not given.get("url"):
            raise PipelineError("format 'amqp' needs the option 'url'")
        return Target(
            Address(given["url"], parse_seconds("timeout", given.get("timeout", "30"))),
            given.get("exchange"),
            given.get("routingkey"),
            parse_bool(given, "mandatory", True),
            parse_count(given, "confirmWindow", WINDOW),
            given.get("writeid"),
        )

    @property
    def description(self) -> str:
        """The target in an error: no password."""
        where = "the exchanges of its rows" if self.exchange is None else f"exchange {self.exchange!r}"
        return f"{where} at {self.address.masked_url}"
