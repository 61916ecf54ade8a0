"""Options of a write: destination, limit of unconfirmed messages, and timeout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.pipeline.broker_connection import Address
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import missing_option, parse_bool, parse_count, parse_seconds, queue_name

OPTIONS = ("url", "queue", "exchange", "routingKey", "mandatory", "confirmWindow", "writeId", "timeout")
SPARK_OPTIONS = frozenset(("checkpointlocation", "queryname"))
"""Options that Spark itself uses and also passes to the writer of a streaming query; they are ignored."""
WINDOW = 10_000
"""Default of the option `confirmWindow`: the maximum number of unconfirmed messages."""
WINDOW_BYTES = 32 * 1024 * 1024
"""Maximum bytes of unconfirmed messages, from which on publishing waits for confirms."""


@dataclass(frozen=True)
class Target:
    """Destination of a write, and options for publishing to it.

    :param exchange: exchange of all messages; None if a column names it. The same holds for `routing_key`
    :param mandatory: whether a message that reaches no queue fails the write
    :param window: maximum number of published messages that the broker has not confirmed
    :param write_id: text from which the message ids are derived, instead of Spark's id of the write
    """

    address: Address
    exchange: str | None = None
    routing_key: str | None = None
    mandatory: bool = True
    window: int = WINDOW
    write_id: str | None = None

    @staticmethod
    def from_options(given: Mapping[str, str]) -> Target:
        """Parse the options of the data source for a write.

        :param given: options with lower-case names
        :raises PipelineError: if an option is unknown, missing or not valid
        """
        known = {name.lower() for name in OPTIONS}
        if unknown := sorted(given.keys() - known - SPARK_OPTIONS):
            raise PipelineError(
                f"format 'amqp' has no option {unknown[0]!r} for writing; there are: {', '.join(OPTIONS)}"
            )
        if not given.get("url"):
            raise PipelineError(missing_option("url", given))
        exchange, routing_key = given.get("exchange"), given.get("routingkey")
        if (queue := given.get("queue")) is not None:
            if exchange is not None or routing_key is not None:
                raise PipelineError(
                    "the option 'queue' says where messages go: leave exchange and routingKey out"
                )
            # Each queue is bound to the default exchange with its name.
            exchange, routing_key = "", queue_name("queue", queue)
        return Target(
            Address(given["url"], parse_seconds("timeout", given.get("timeout", "30"))),
            exchange,
            routing_key,
            parse_bool(given, "mandatory", True),
            parse_count(given, "confirmWindow", WINDOW),
            given.get("writeid"),
        )

    @property
    def description(self) -> str:
        """Exchange and URL of the broker for error messages, without a password."""
        where = "the exchanges of its rows" if self.exchange is None else f"exchange {self.exchange!r}"
        return f"{where} at {self.address.masked_url}"
