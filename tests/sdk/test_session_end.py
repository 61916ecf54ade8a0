"""What waits on a connection that ends gets the SDK's error, however the connection ended."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.proxy import Proxy
from warren.sdk.errors import TransportUnavailable
from warren.sdk.transport import Session


@pytest.mark.parametrize("reason", [None, asyncio.CancelledError, ConnectionResetError("gone")], ids=repr)
@pytest.mark.parametrize("turns", [1, 3, 5])
async def test_a_channel_that_opens_meanwhile(
    amqp_url: str, reason: BaseException | type[BaseException] | None, turns: int
) -> None:
    session = await Session.open(amqp_url, "ends", lambda _: None)
    opening = asyncio.ensure_future(session.channel())
    for _ in range(turns):
        await asyncio.sleep(0)
    await session._connection.close(
        reason
    )  # as aiormq's reader does when it has ended, None at a frame's boundary
    with pytest.raises(TransportUnavailable, match="cannot open a channel"):
        await opening
    await session.close()


async def test_a_channel_that_is_asked_for_while_the_loss_becomes_known(proxy: Proxy) -> None:
    for turns in range(30):
        session = await Session.open(proxy.url, "lost", lambda _: None)
        proxy.cut()
        for _ in range(turns):
            await asyncio.sleep(0)
        with pytest.raises(TransportUnavailable, match="cannot open a channel"):
            async with asyncio.timeout(5):
                await session.channel(transactions=True)
        await session.close()


async def test_a_channel_of_a_connection_that_has_ended(amqp_url: str) -> None:
    session = await Session.open(amqp_url, "ended", lambda _: None)
    await session._connection.close()
    with pytest.raises(TransportUnavailable, match="cannot open a channel"):
        await session.channel()
    await session.close()
