"""Debug log of handled messages: one line for each, with its handler, duration and outcome."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from time import perf_counter

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.handling_outcome import noted_outcome
from warren.sdk.consume.settlement import Settlement
from warren.sdk.logger import log


async def log_handling(handling: Awaitable[Settlement], delivery: Delivery, handler: str) -> Settlement:
    """Await the handling of a message, log the outcome at debug level, and return the settlement.

    :param handler: name of the handler.
    """
    began = perf_counter()
    outcome = "cancelled"
    try:
        with noted_outcome() as noted:
            settlement = await handling
        outcome = settlement.value if settlement is not Settlement.ACK else noted[0] if noted else "handled"
        return settlement
    finally:
        # An error of a log handler must not replace the settlement.
        with suppress(Exception):
            log.debug(
                "event=message.processed queue=%s handler=%s type=%s message_id=%s milliseconds=%.1f outcome=%s",
                delivery.queue, handler, delivery.type, delivery.message_id, (perf_counter() - began) * 1000, outcome,
            )  # fmt: skip
