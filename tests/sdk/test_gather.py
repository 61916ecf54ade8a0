"""Scatter-gather: one request, many replies, and the queues that did not reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import get_args

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, Delivery, Fault, NoServer, ReplyMode, Request, Scatter
from warren.sdk.publish.outgoing import Outgoing


class Refused(Fault[None], code="refused"):
    pass


@pytest.fixture(params=get_args(ReplyMode))
def make_app(make_app: MakeApp, request: pytest.FixtureRequest) -> MakeApp:
    return partial(make_app, replies=request.param)


def market(name: str, suppliers: Sequence[str]) -> type[Scatter[int]]:
    class AskPrice(
        Scatter[int],
        exchange=name,
        key="ask",
        audience=[f"{name}.{one}" for one in suppliers],
        faults=[Refused],
    ):
        sku: str = "lamp"

    return AskPrice


def supply(app: App, ask: type[Scatter[int]], queue: str, price: int) -> asyncio.Event:
    """Add a supplier that replies with its price when the event is set."""
    go = asyncio.Event()

    @app.handle(ask, queue=queue)
    async def offer(request: Scatter[int]) -> int:
        await go.wait()
        if price < 0:
            raise Refused("we do not sell")
        return price

    return go


async def test_all_queues_reply(make_app: MakeApp, name: str) -> None:
    ask = market(name, ["a", "b", "c"])
    app = make_app()
    for one, price in {"a": 1, "b": 2, "c": -1}.items():
        supply(app, ask, f"{name}.{one}", price).set()
    async with app:
        gathered = await app.gather(ask(), timeout=60)
        assert app.statistics().calls.in_flight == 0
    assert sorted(gathered.values) == [1, 2]
    assert {reply.queue for reply in gathered.replies} == {f"{name}.a", f"{name}.b", f"{name}.c"}
    assert [type(error) for error in gathered.errors] == [Refused]
    assert (gathered.silent, gathered.interrupted) == (frozenset(), None)


@pytest.mark.slow  # waits for 16 s
async def test_queues_that_do_not_reply_in_time_are_listed(make_app: MakeApp, name: str) -> None:
    ask = market(name, ["a", "b"])
    app = make_app()
    supply(app, ask, f"{name}.a", 1).set()
    late = supply(app, ask, f"{name}.b", 2)
    app.publishes(ask)  # else the gathering declares it, within its time
    async with app:
        gathered = await app.gather(ask(), timeout=16)
        assert gathered.values == [1]
        assert gathered.silent == {f"{name}.b"}
        late.set()
        await eventually(lambda: app.statistics().calls.discarded_replies == 1, "the late reply is counted")


async def test_gather_ends_after_the_requested_number_of_replies(make_app: MakeApp, name: str) -> None:
    ask = market(name, ["a", "b", "c"])
    app = make_app()
    supply(app, ask, f"{name}.a", -1).set()
    supply(app, ask, f"{name}.b", 2).set()
    never = supply(app, ask, f"{name}.c", 3)
    async with app:
        gathered = await app.gather(ask(), replies=1, timeout=60)
        assert gathered.values == [2]
        assert gathered.silent >= {f"{name}.c"}
        never.set()


async def test_gather_ends_with_the_last_reply_if_more_values_are_requested(
    make_app: MakeApp, name: str
) -> None:
    ask = market(name, ["a", "b"])
    app = make_app()
    supply(app, ask, f"{name}.a", -1).set()
    supply(app, ask, f"{name}.b", 2).set()
    async with app, asyncio.timeout(60):
        gathered = await app.gather(ask(), replies=2, timeout=240)
    assert (gathered.values, len(gathered.errors), gathered.silent) == ([2], 1, frozenset())


async def test_replies_can_be_iterated_as_they_arrive(make_app: MakeApp, name: str) -> None:
    ask = market(name, ["a", "b"])
    app = make_app()
    first, second = supply(app, ask, f"{name}.a", 1), supply(app, ask, f"{name}.b", 2)
    first.set()
    seen: list[int] = []
    async with app:
        gathering = app.gather(ask(), timeout=60)
        async for reply in gathering:
            seen.append(reply.value)
            assert len(seen) == 2 or gathering.silent == {f"{name}.b"}
            second.set()
        left = app.gather(ask(), timeout=60)
        async for _ in left:
            break
        left.close()
        assert app.statistics().calls.in_flight == 0
    assert seen == [1, 2]


async def test_one_server_counts_once_however_often_it_answers(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    ask = market(name, ["a", "b"])
    app = make_app()
    app.declare(*ask.required_topology())
    async with app:
        gathering = asyncio.ensure_future(app.gather(ask(), timeout=60))
        for one, copies in {"a": 2, "b": 1}.items():
            request = await amqp_client.take(f"{name}.{one}")
            assert request.reply_to is not None
            for _ in range(copies):
                await amqp_client.put(
                    request.reply_to, b"7", correlation_id=request.correlation_id,
                    headers={"warren-queue": f"{name}.{one}"},
                )  # fmt: skip
        assert (await gathering).values == [7, 7]
        assert app.statistics().calls.discarded_replies == 1


async def test_a_request_can_be_scattered_over_an_existing_exchange(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    """Servers that are not built with Warren do not name their queue; the number of replies is awaited."""

    class Ping(Request[str], queue=name):
        pass

    exchange = await amqp_client.channel.declare_exchange(name, "fanout", auto_delete=True)
    queues = [await amqp_client.channel.declare_queue(exclusive=True) for _ in range(2)]
    for queue in queues:
        await queue.bind(exchange)
    async with make_app() as app:
        gathering = asyncio.ensure_future(app.gather(Ping(), replies=2, timeout=60, exchange=name))
        for queue in queues:
            request = await amqp_client.take(queue.name)
            assert request.reply_to is not None
            await amqp_client.put(request.reply_to, b'"pong"', correlation_id=request.correlation_id)
        gathered = await gathering
    assert gathered.values == ["pong", "pong"]
    assert [reply.queue for reply in gathered.replies] == [None, None]


async def test_a_scatter_without_bindings_fails_at_once(make_app: MakeApp, name: str) -> None:
    class Ask(Scatter[int], exchange=name, key="ask"):
        pass

    async with make_app() as app:
        with pytest.raises(NoServer, match="nobody serves exchange"):
            await app.gather(Ask(), timeout=60)
        assert app.statistics().calls.in_flight == 0


async def test_a_lost_connection_ends_gather_with_the_replies_so_far(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    ask = market(name, ["a", "b"])
    server, client = make_app(grace=0.0), make_app(proxy.url)
    supply(server, ask, f"{name}.a", 1).set()
    supply(server, ask, f"{name}.b", 2)
    async with server, client:
        gathering = client.gather(ask(), timeout=60)
        assert (await anext(gathering)).value == 1
        proxy.cut()
        assert [reply async for reply in gathering] == []
        assert gathering.interruption is not None
        assert gathering.silent == {f"{name}.b"}


async def test_replies_pass_the_callers_handle_middlewares(make_app: MakeApp, name: str) -> None:
    ask = market(name, ["a"])
    app = make_app()

    async def seal(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        outgoing.set_body(outgoing.body[::-1])
        await call_next(outgoing)

    async def unseal(delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        await call_next(delivery.replace(body=delivery.body[::-1]))

    app.middleware(publish=seal, handle=unseal)
    supply(app, ask, f"{name}.a", 12).set()
    async with app:
        assert (await app.gather(ask(), timeout=60)).values == [12]
