"""Replay attack: publish a captured message again, unchanged or changed."""

from __future__ import annotations

from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

KEPT = ("headers", "content_type", "content_encoding", "message_id", "type", "correlation_id")


async def publish_captured(url: str, queue: str, message: AbstractIncomingMessage, **changed: Any) -> None:
    """Publish `message` to `queue` with the properties that an attacker would keep, and `changed` ones."""
    kept: dict[str, Any] = {name: getattr(message, name) for name in KEPT}
    body = changed.pop("body", message.body)
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.default_exchange.publish(
            aio_pika.Message(body, **{**kept, **changed}), routing_key=queue
        )
