"""Calls: typed replies, and the error of each call."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import get_args

import pytest
from pydantic import BaseModel

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import (
    CallTimeout,
    Command,
    Delivery,
    NoServer,
    Queue,
    RemoteError,
    ReplyMode,
    Request,
    TransportUnavailable,
)


class Quote(BaseModel):
    sku: str
    cents: int


@pytest.fixture(params=get_args(ReplyMode))
def replies(request: pytest.FixtureRequest) -> ReplyMode:
    mode: ReplyMode = request.param
    return mode


@pytest.fixture
def make_app(make_app: MakeApp, replies: ReplyMode) -> MakeApp:
    """Run every test with a reply queue and with direct reply-to."""
    return partial(make_app, replies=replies)


async def test_calls_run_side_by_side_and_get_their_own_replies(make_app: MakeApp, name: str) -> None:
    class GetQuote(Request[Quote], queue=name):
        sku: str

    server, client = make_app(), make_app()

    @server.handle(GetQuote, concurrency=20)
    async def quote(request: GetQuote) -> Quote:
        return Quote(sku=request.sku, cents=len(request.sku))

    async with server, client:
        quotes = await asyncio.gather(*(client.call(GetQuote(sku="x" * n)) for n in range(200)))
    assert [quote.cents for quote in quotes] == list(range(200))


async def test_the_request_is_acknowledged_after_the_reply_was_confirmed(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    server, client = make_app(proxy.url), make_app()

    @server.handle(Ask)
    async def ask(request: Ask) -> int:
        proxy.to_client.hold()
        return 1

    async with server, client:
        assert await client.call(Ask()) == 1
        assert server.statistics().subscriptions[name].acknowledged == 0
        proxy.to_client.release()
        await eventually(
            lambda: server.statistics().subscriptions[name].acknowledged == 1, "it is acknowledged"
        )


async def test_an_error_is_a_reply(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    class Ask(Request[int], queue=name):
        how: str

    app = make_app()
    tried: list[str] = []

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        tried.append(request.how)
        if request.how == "chosen":
            raise RemoteError("sold_out", "none left", details={"sku": "x"}, retryable=True)
        raise KeyError("nobody expected this")

    async with app:
        with pytest.raises(RemoteError, match="sold_out: none left") as chosen:
            await app.call(Ask(how="chosen"))
        with pytest.raises(RemoteError, match="KeyError") as unexpected:
            await app.call(Ask(how="unexpected"))
    assert (chosen.value.code, chosen.value.message, chosen.value.details, chosen.value.retryable) == (
        "sold_out", "none left", {"sku": "x"}, True,
    )  # fmt: skip
    assert (unexpected.value.code, unexpected.value.retryable) == ("KeyError", False)
    assert tried == ["chosen", "unexpected", "unexpected", "unexpected"]
    for queue in (name, f"{name}.dead"):
        await amqp_client.holds(queue, 0)


async def test_a_request_that_the_server_has_no_handler_for_is_refused_at_once(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    class Other(Request[int], queue=name, type="other"):
        pass

    app = make_app()

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        return 1

    async with app:
        with pytest.raises(RemoteError, match="has no handler for type 'other'") as refused:
            await app.call(Other())
        assert await app.call(Ask()) == 1
        await amqp_client.put(name, b"{}", type="other")
        assert (await amqp_client.take(f"{name}.dead")).headers["warren-dead-reason"] == "unknown_type"
    assert (refused.value.code, refused.value.retryable) == ("unknown_type", False)
    await amqp_client.holds(f"{name}.dead", 0)


async def test_a_call_without_a_server_fails_at_once(make_app: MakeApp, name: str) -> None:
    class Ask(Request[int], queue=name):
        pass

    async with make_app(declare="never") as app:
        async with asyncio.timeout(60):
            with pytest.raises(NoServer, match="nobody serves queue"):
                await app.call(Ask(), timeout=240)


async def test_a_silent_server_is_a_timeout_and_the_request_expires(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app()
    app.publishes(Ask)  # else the call declares it, within its time
    async with app:
        with pytest.raises(CallTimeout, match="no reply from queue") as caught:
            await app.call(Ask(), timeout=0.2)
        expired = await amqp_client.take(f"{name}.dead")
        assert app.statistics().calls.in_flight == 0
    assert (caught.value.outcome, caught.value.retryable) == ("unknown", True)
    assert expired.headers["x-death"][0]["reason"] == "expired"  # type: ignore[index, call-overload]


async def test_a_late_reply_is_counted_and_dropped(make_app: MakeApp, name: str) -> None:
    class Ask(Request[int], queue=name):
        pass

    server, client = make_app(), make_app()
    client.publishes(Ask)
    finish = asyncio.Event()

    @server.handle(Ask)
    async def ask(request: Ask) -> int:
        await finish.wait()
        return 1

    async with server, client:
        with pytest.raises(CallTimeout):
            await client.call(Ask(), timeout=0.2)
        finish.set()
        await eventually(
            lambda: client.statistics().calls.discarded_replies == 1, "the late reply is counted"
        )


async def test_a_caller_that_has_gone_is_no_failure_of_the_server(
    make_app: MakeApp, replies: ReplyMode, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    server, client = make_app(), make_app()
    started, finish = asyncio.Event(), asyncio.Event()

    @server.handle(Ask)
    async def ask(request: Ask) -> int:
        started.set()
        await finish.wait()
        return 1

    async with server:
        async with client:
            call = asyncio.create_task(client.call(Ask()))
            await started.wait()
            call.cancel()
        finish.set()
        if replies == "queue":  # nobody hears of a direct reply that came too late
            await eventually(
                lambda: server.statistics().handlers[name].unclaimed_replies == 1, "it is counted"
            )
        await eventually(
            lambda: server.statistics().subscriptions[name].acknowledged == 1, "it is acknowledged"
        )
    assert call.cancelled()


async def test_a_lost_connection_fails_the_calls_in_flight(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    server, client = make_app(grace=0.0), make_app(proxy.url)  # its first handler never ends
    started = asyncio.Event()

    @server.handle(Ask)
    async def ask(request: Ask) -> int:
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return 2

    async with server, client:
        call = asyncio.create_task(client.call(Ask()))
        await started.wait()
        proxy.cut()
        with pytest.raises(TransportUnavailable) as caught:
            await call
        assert caught.value.outcome == "unknown"
        assert await client.call(Ask()) == 2


async def test_a_reply_of_another_type_is_an_error(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app()
    app.declare(*Ask.required_topology())
    async with app:
        call = asyncio.create_task(app.call(Ask()))
        request = await amqp_client.take(name)
        assert request.reply_to is not None
        await amqp_client.put(request.reply_to, b'"many"', correlation_id=request.correlation_id)
        with pytest.raises(RemoteError, match="the reply is not what the request says"):
            await call


async def test_a_handler_may_call_its_own_queue_at_concurrency_1(make_app: MakeApp, name: str) -> None:
    class Factorial(Request[int], queue=name):
        n: int

    app = make_app()

    @app.handle(Factorial, concurrency=1, prefetch=1)
    async def factorial(request: Factorial) -> int:
        if request.n < 2:
            return 1
        return request.n * await app.call(Factorial(n=request.n - 1))

    async with app:
        assert await asyncio.gather(*(app.call(Factorial(n=n)) for n in (5, 10, 5))) == [120, 3628800, 120]
        assert app.statistics().subscriptions[name].delivered == 3


async def test_a_handler_that_calls_publishes_and_declares_does_not_wait_for_itself(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Double(Request[int], queue=f"{name}.double"):
        n: int

    class Outer(Request[int], queue=name):
        n: int

    class Log(Command, queue=f"{name}.log"):
        n: int

    app = make_app()

    @app.handle(Double, concurrency=1, prefetch=1)
    async def double(request: Double) -> int:
        return 2 * request.n

    @app.handle(Outer, concurrency=1, prefetch=1)
    async def outer(request: Outer) -> int:
        await app.declare_now(Queue(f"{name}.log"))
        await app.publish(Log(n=request.n))
        message = await app.get(f"{name}.log", timeout=60)
        assert message is not None
        await message.ack()
        return message.read(Log).n - request.n + 1 + await app.call(Double(n=request.n))

    async with app:
        assert await asyncio.gather(*(app.call(Outer(n=n), timeout=240) for n in range(20))) == [
            1 + 2 * n for n in range(20)
        ]
        await amqp_client.holds(f"{name}.log", 0)


async def test_a_request_that_is_handled_twice_gets_one_reply(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    """Delivery is at least once: the second reply is discarded and counted."""

    class Ask(Request[int], queue=name):
        pass

    client, server = make_app(), make_app()

    @server.handle(Ask)
    async def ask(request: Ask, delivery: Delivery) -> int:
        properties = delivery.properties
        await amqp_client.put(properties["reply_to"], b"1", correlation_id=properties["correlation_id"])
        return 1

    async with server, client:
        assert await client.call(Ask()) == 1
        await eventually(
            lambda: client.statistics().calls.discarded_replies == 1, "the other reply is counted"
        )
        assert client.statistics().calls.replies == 1


async def test_replies_arrive_again_after_a_reconnect(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    class Ask(Request[int], queue=name):
        n: int

    server, client = make_app(), make_app(proxy.url)

    @server.handle(Ask)
    async def ask(request: Ask) -> int:
        return request.n

    async with server, client:
        for n in range(3):
            assert await client.call(Ask(n=n)) == n
            proxy.cut()
            await eventually(lambda n=n: client.statistics().reconnects >= 2 * n + 2, "it is back")  # type: ignore[misc]
            await eventually(lambda: client.ready, "it is ready")
        assert await client.call(Ask(n=3)) == 3
        assert client.statistics().calls.in_flight == 0


async def test_a_cancelled_call_leaves_nothing_behind(make_app: MakeApp, name: str) -> None:
    class Ask(Request[int], queue=name):
        wait: bool = True

    client, server = make_app(), make_app(grace=0.0)
    started = asyncio.Semaphore(0)

    @server.handle(Ask)
    async def ask(request: Ask) -> int:
        started.release()
        if request.wait:
            await asyncio.Event().wait()
        return 1

    async with server, client:
        calls = [asyncio.create_task(client.call(Ask())) for _ in range(5)]
        await started.acquire()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert client.statistics().calls.in_flight == 0
        assert await client.call(Ask(wait=False)) == 1


async def test_a_request_that_waited_for_the_connection_expires_with_its_caller(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app(proxy.url)
    app.publishes(Ask)
    async with app:
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: not app.ready, "the loss is noticed")
        calling = asyncio.create_task(app.call(Ask(), timeout=60))
        await asyncio.sleep(0)  # its time has begun
        await asyncio.sleep(0.05)
        proxy.accept()
        request = await amqp_client.take(name)
        assert isinstance(request.expiration, int | float)
        assert request.expiration <= 59.95
        assert request.reply_to is not None
        if app.statistics().calls.in_flight and not request.reply_to.startswith("amq."):
            await amqp_client.put(request.reply_to, b"7", correlation_id=request.correlation_id)
            assert await calling == 7
        calling.cancel()


async def test_a_request_that_waited_for_the_window_expires_with_its_caller(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app(proxy.url, window=1)
    app.publishes(Ask)
    app.declare(Queue(f"{name}.other"))
    async with app:
        proxy.to_client.hold()
        confirm = await app.submit(b"1", key=f"{name}.other")
        calling = asyncio.create_task(app.call(Ask(), timeout=60))
        await asyncio.sleep(0)  # its time has begun
        await asyncio.sleep(0.05)
        assert not confirm.done()
        proxy.to_client.release()
        request = await amqp_client.take(name)
        assert isinstance(request.expiration, int | float)
        assert request.expiration <= 59.95
        calling.cancel()
