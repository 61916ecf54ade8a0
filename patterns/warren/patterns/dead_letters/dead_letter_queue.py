"""The dead letter queue that a name stands for: `billing` means `billing.dead`, if that exists."""

from __future__ import annotations

import asyncio
from typing import Final

from warren.patterns.dead_letters.parking_lot import ANSWER_SECONDS, declare_passively
from warren.sdk import TopologyMismatch
from warren.sdk.extend import Session

SUFFIX: Final = ".dead"
"""End of the name of the dead letter queue that the SDK declares for a queue."""


async def dead_letter_queue(url: str, name: str) -> str:
    """Return `<name>.dead` if the broker has such a queue, else the name.

    So a command that gets the name of a working queue works on its dead letters, never on its live messages.

    :param url: AMQP URL of the broker.
    :param name: name of a queue, or of its dead letter queue.
    :raises TransportUnavailable: there is no connection, or it was lost.
    """
    if name.endswith(SUFFIX):
        return name
    session = await Session.open(url, "warren dead letters", lambda reason: None)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            channel = await session.channel()
        await declare_passively(channel, f"{name}{SUFFIX}")
    except TopologyMismatch as error:
        if error.reply_code == 404:
            return name
        if error.reply_code not in (
            403,
            405,
        ):  # It exists, but this user may not read it, or it is exclusive.
            raise
    finally:
        await session.close()
    return f"{name}{SUFFIX}"


__all__ = ["SUFFIX", "dead_letter_queue"]
