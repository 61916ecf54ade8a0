"""Deletion of queues and exchanges with any names: aio-pika refuses some that brokers allow."""

from __future__ import annotations

from aio_pika.abc import AbstractChannel
from aiormq.channel import Channel
from pamqp import commands
from pamqp.base import Frame


class _AnyName(Frame):
    def validate(self) -> None: ...


class _QueueDelete(_AnyName, commands.Queue.Delete): ...


class _ExchangeDelete(_AnyName, commands.Exchange.Delete): ...


async def delete_queue(channel: AbstractChannel, name: str) -> None:
    """Delete a queue with its messages; one that does not exist is no error."""
    await _call(channel, _QueueDelete(queue=name))


async def delete_exchange(channel: AbstractChannel, name: str) -> None:
    """Delete an exchange with its bindings; one that does not exist is no error."""
    await _call(channel, _ExchangeDelete(exchange=name))


async def _call(channel: AbstractChannel, method: Frame) -> None:
    underlay = await channel.get_underlay_channel()
    assert isinstance(underlay, Channel)
    await underlay.rpc(method)
