"""The end of a connection: all that waits on it gets the SDK's error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, Queue
from warren.sdk.errors import TransactionError, TransportUnavailable
from warren.sdk.transport.control_channel import ControlChannel
from warren.sdk.transport.host_failover import Hosts
from warren.sdk.transport.session import Session
from warren.sdk.transport.supervised_connection import SupervisedConnection


@pytest.mark.parametrize("reason", [None, asyncio.CancelledError, ConnectionResetError("gone")], ids=repr)
async def test_opening_a_channel_while_the_connection_is_lost(
    amqp_url: str, reason: BaseException | type[BaseException] | None
) -> None:
    lost = 0
    for turns in range(1, 6):
        session = await Session.open(amqp_url, "ends", lambda _: None)
        opening = asyncio.ensure_future(session.channel())
        for _ in range(turns):
            await asyncio.sleep(0)
        # As aiormq's reader does when it has ended, None at a frame's boundary.
        await session._connection.close(reason)
        (found,) = await asyncio.gather(opening, return_exceptions=True)
        # On newer versions of Python, the channel may open before the loss has its effect.
        if isinstance(found, BaseException):
            assert isinstance(found, TransportUnavailable)
            assert "cannot open a channel" in str(found)
            lost += 1
        await session.close()
    assert lost


async def test_opening_a_channel_while_the_loss_is_being_noticed(proxy: Proxy) -> None:
    for turns in range(30):
        session = await Session.open(proxy.url, "lost", lambda _: None)
        proxy.cut()
        for _ in range(turns):
            await asyncio.sleep(0)
        with pytest.raises(TransportUnavailable, match="cannot open a channel"):
            async with asyncio.timeout(60):
                await session.channel(transactions=True)
        await session.close()


async def test_opening_a_channel_on_a_closed_connection(amqp_url: str) -> None:
    session = await Session.open(amqp_url, "ended", lambda _: None)
    await session._connection.close()
    with pytest.raises(TransportUnavailable, match="cannot open a channel"):
        await session.channel()
    await session.close()


async def begin_a_transaction(app: App, name: str, number: int) -> None:
    begun = False
    # The commit of one that had begun before the loss was known cannot succeed.
    with contextlib.suppress(TransactionError):
        async with app.transaction():
            begun = True
    assert begun


async def take(app: App, name: str, number: int) -> None:
    await app.get(name)


async def declare(app: App, name: str, number: int) -> None:
    await app.declare_now(Queue(f"{name}.{number}"))


@pytest.mark.parametrize("act", [begin_a_transaction, take, declare])
async def test_work_that_begins_during_a_loss_is_done_on_the_next_connection(
    make_app: MakeApp, proxy: Proxy, name: str, act: Callable[[App, str, int], Awaitable[None]]
) -> None:
    app = make_app(proxy.url, first_retry=0.001, longest_retry=0.01)
    app.declare(Queue(name))
    async with app:
        for turns in range(25):
            proxy.cut()
            for _ in range(turns):
                await asyncio.sleep(0)
            await act(app, name, turns)


async def test_work_fails_with_app_stopped_if_the_app_stops_during_a_loss(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    """The error is not that of the connection: without the stop, the work would continue on the next one."""
    for turns in range(20):
        proxy.accept()
        app = make_app(proxy.url)
        await app.start()
        proxy.refuse()
        proxy.cut()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting = asyncio.create_task(app.declare_now(Queue(f"{name}.{turns}")))
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await app.stop()
            with pytest.raises(TransportUnavailable, match=r"(?m)^the App stopped$"):
                await waiting


@pytest.mark.parametrize("act", [begin_a_transaction, take])
async def test_exceeding_channel_max_fails_at_once(
    name: str, act: Callable[[App, str, int], Awaitable[None]]
) -> None:
    """The broker closes the connection over it; a repetition would end the next one too."""
    with InProcessBroker() as broker:
        assert broker.broker is not None
        node = broker.broker._node
        assert node is not None
        app = App(broker.url)
        app.declare(Queue(name))
        async with app:
            users = node.access.users
            broker.call(lambda: users.set_limits("guest", max_connections=None, max_channels=5))
            with pytest.raises(TransportUnavailable, match="number of channels") as caught:
                await act(app, name, 0)
            assert not caught.value.retryable
            await eventually(lambda: app.ready, "it is ready again")
            assert app.statistics().reconnects == 1


@pytest.mark.parametrize("stable", [3600.0, 0.05], ids=["at once", "when it has stood for a while"])
async def test_work_over_which_the_broker_closes_connections_is_tried_three_times(
    amqp_url: str, stable: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervising task learns of the loss before or after the user of the connection."""
    monkeypatch.setattr("warren.sdk.transport.supervised_connection.STABLE_SECONDS", stable)
    loop = asyncio.get_running_loop()
    used: list[Session] = []

    async def nothing(session: Session, control: ControlChannel) -> None: ...

    link = SupervisedConnection(
        Hosts([amqp_url]),
        "breaks",
        setup=nothing,
        on_up=lambda: None,
        on_down=lambda: None,
        on_blocked=lambda reason: None,
        first_retry=0.001,
        longest_retry=0.01,
    )

    async def later(session: Session, long_enough: float) -> None:
        await eventually(lambda: stable > 1 or loop.time() > long_enough, "it has stood for a while")
        session.frame_writer.transport.write(b"\x01\0\0\0\0\0\x04abcd!")

    async def break_a_frame(session: Session) -> None:
        used.append(session)
        breaking = asyncio.ensure_future(later(session, loop.time() + 0.1))
        await asyncio.wait((session.lost,))
        await breaking
        raise TransportUnavailable("the connection was lost")

    await link.start(60)
    try:
        with pytest.raises(
            TransportUnavailable, match=r"the broker closed the connection: .*invalid_frame_end_marker"
        ):
            await link.use(break_a_frame)
        assert len(set(used)) == len(used) == link.connects == 3
    finally:
        await link.close()
