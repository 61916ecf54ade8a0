"""The bridge on the wire: Celery's message protocol 2 without Celery, on a broker in this process and a virtual clock."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import aio_pika
import pytest
from pydantic import BaseModel

from tests.support.async_client import async_client
from warren.broker import Broker
from warren.patterns import Once, SqliteStore
from warren.patterns.celery import (
    CeleryBridge,
    CeleryRequest,
    CeleryState,
    CeleryTaskError,
    celery_queue,
    current_request,
    kombu_json,
)
from warren.sdk import Ack, App, ConfigError, DeadLetter, Delivery, Header, Retry, RetryLater
from warren.sdk.extend import encode
from warren.testing import Warren

QUEUE = "celery"


class Order(BaseModel):
    order_id: str
    total: Decimal


async def put(
    app: App,
    body: object,
    *,
    task: str | None = "shop.charge",
    headers: Mapping[str, Any] | None = None,
    **properties: str,
) -> None:
    """Publish a message as a Celery client does, with the id 1."""
    table: dict[str, Any] = {} if task is None else {"task": task, "id": "1", "lang": "py"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    outgoing = encode(content, now=app.clock.now(), key=QUEUE, headers={**table, **(headers or {})})
    given = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    for name, value in given.items():
        outgoing.set(name, value)
    await (await app.submit_encoded(outgoing, 60))


async def take(app: App, queue: str) -> Delivery:
    """Return the next message of a queue, acknowledged."""
    message = await app.get(queue, timeout=60)
    assert message is not None
    await message.ack()
    return message


async def test_a_task_waits_for_its_eta_on_the_broker(warren: Warren) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    ran: list[datetime] = []

    @bridge.task("shop.charge")
    async def charge() -> None:
        ran.append(now())

    @bridge.remote("shop.charge", ignore_result=True)
    def remote_charge() -> None: ...

    def now() -> datetime:
        return datetime.fromtimestamp(app.clock.now(), UTC)

    async with warren.running(app):
        began = now()
        await remote_charge.with_options(eta=began + timedelta(days=2)).delay()
        await remote_charge.with_options(countdown="1h", expires="30m").delay()
        await warren.advance(timedelta(hours=47))
        # No delivery is held meanwhile: all three were acknowledged.
        assert (ran, bridge.statistics.postponed, bridge.statistics.expired) == ([], 2, 1)
        assert app.statistics().handlers[QUEUE].handled == 3
        await warren.advance(timedelta(hours=1, seconds=1))
    assert len(ran) == 1
    assert timedelta(days=2) <= ran[0] - began <= timedelta(days=2, seconds=1)


async def test_a_retry_is_delayed_counted_and_announced(warren: Warren) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    seen: list[int] = []

    @bridge.task("shop.charge", retry=Retry(2, first_wait=0).then("1m").on(ConnectionError))
    async def charge(request: CeleryRequest) -> str:
        seen.append(request.retries)
        if len(seen) < 3:
            raise ConnectionError("the bank does not answer")
        if len(seen) < 4:
            raise RetryLater("1h")
        return "charged"

    @bridge.remote("shop.charge")
    def remote_charge() -> str:
        raise NotImplementedError

    async with warren.running(app):
        result = await remote_charge.delay()
        await warren.advance(seconds=59)
        assert (seen, result.state) == ([0, 0], CeleryState.RETRY)
        await warren.advance(seconds=2)
        assert (seen, result.state) == ([0, 0, 1], CeleryState.RETRY)
        await warren.advance(timedelta(hours=1, seconds=1))
        assert await result.get() == "charged"
    assert seen == [0, 0, 1, 2]
    assert (bridge.statistics.retried, bridge.statistics.succeeded) == (2, 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            {"content_type": "application/x-python-serialize"},
            "only JSON is read, set task_serializer = 'json'",
        ),
        ({"content_type": "application/x-yaml"}, "only JSON is read, set task_serializer = 'json'"),
        ({"headers": {"compression": "application/x-gzip"}}, "unset task_compression"),
        ({"body": {"task": "shop.charge", "id": "1", "args": []}, "task": None}, "set task_protocol = 2"),
        ({"body": [], "task": None}, "no headers `task` and `id`"),
        ({"body": [[], {}]}, "not [args, kwargs, embed]"),
        ({"body": b"\xff"}, "cannot be read"),
        ({"body": [[{"__type__": "os", "__value__": 1}], {}, {}]}, "kombu has no type 'os'"),
        ({"body": [["42"], {"cents": 1, "more": 2}, {}]}, "unexpected keyword argument 'more'"),
        ({"body": [["42", "much"], {}, {}]}, "the argument 'cents' is not valid"),
        ({"task": "shop.unknown"}, "has no task 'shop.unknown'"),
        ({"headers": {"eta": "tomorrow"}}, "`eta` of the task is no time: 'tomorrow'"),
        ({"body": [["42", 1], {}, {"chord": {"task": "a"}}]}, "part of a chord"),
        ({"body": [["42", 1], {}, {"chain": [{"task": "a", "subtask_type": "chord"}]}]}, "a chord follows"),
        ({"body": [["42", 1], {}, {"callbacks": [1]}]}, "`callbacks` that are no signatures"),
    ],
)
async def test_a_message_that_cannot_be_run_is_dead_lettered_and_answered(
    warren: Warren, message: dict[str, Any], reason: str
) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    ran: list[str] = []

    @bridge.task("shop.charge")
    async def charge(order_id: str, cents: int) -> None:
        ran.append(order_id)

    app.declare(celery_queue("results"))
    message = {"body": [["42", 1], {}, {}], "reply_to": "results", **message}
    async with warren.running(app):
        await put(app, **message)
        dead = await take(app, f"{QUEUE}.dead")
        assert reason in dead.headers["warren-dead-error"]
        assert dead.headers["warren-dead-queue"] == QUEUE
        if message.get("task", "") is not None:
            answer = json.loads((await take(app, "results")).body)
            assert (answer["task_id"], answer["status"]) == ("1", "FAILURE")
            assert reason in answer["result"]["exc_message"][0]
    assert ran == []
    assert bridge.statistics.refused == 1


async def test_the_messages_are_those_of_celery(warren: Warren) -> None:
    """The messages stay as Celery 5.7 reads and writes them."""
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    app.declare(celery_queue("results"))

    @bridge.remote("shop.mail", queue="mail")
    def mail(order: Order, *, when: datetime) -> None: ...

    @bridge.task("shop.charge", track_started=True)
    async def charge(order: Order) -> Order:
        request = current_request()
        assert request is not None
        assert request.delivery.queue == QUEUE
        await mail.with_options(priority=3, task_id="2").delay(order, when=datetime(2026, 11, 23, tzinfo=UTC))
        return order

    async with warren.running(app):
        order = {"order_id": "42", "total": "9.90"}
        await put(
            app,
            [[order], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
            headers={"root_id": "0", "parent_id": "0", "group": "g", "retries": 0, "eta": None},
            reply_to="results",
            correlation_id="c",
        )
        sent = await take(app, "mail")
        money = {"__type__": "decimal", "__value__": "9.90"}
        assert json.loads(sent.body) == [
            [{"order_id": "42", "total": money}],
            {"when": {"__type__": "datetime", "__value__": "2026-11-23T00:00:00+00:00"}},
            {"callbacks": None, "errbacks": None, "chain": None, "chord": None},
        ]
        expected = {
            "lang": "py",
            "task": "shop.mail",
            "id": "2",
            "root_id": "0",
            "parent_id": "1",
            "retries": 0,
        }
        assert {name: sent.headers[name] for name in expected} == expected
        assert sent.headers["argsrepr"] == "(Order(order_id='42', total=Decimal('9.90')),)"
        assert sent.headers["timelimit"] == [None, None]
        assert {
            name: sent.properties[name] for name in ("content_type", "content_encoding", "delivery_mode")
        } == {
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "delivery_mode": 2,
        }
        assert (sent.properties["correlation_id"], sent.properties["priority"]) == ("2", 3)
        started = json.loads((await take(app, "results")).body)
        assert (started["status"], started["date_done"]) == ("STARTED", None)
        answer = await take(app, "results")
        assert answer.properties["correlation_id"] == "c"
        assert answer.properties["delivery_mode"] == 1
        body = json.loads(answer.body)
        assert datetime.fromisoformat(body.pop("date_done")).tzinfo is not None
        assert body == {
            "status": "SUCCESS",
            "result": {"order_id": "42", "total": money},
            "traceback": None,
            "children": [],
            "task_id": "1",
            "group_id": "g",
            "parent_id": "0",
        }


async def test_following_tasks_are_sent_as_their_signatures_say(warren: Warren) -> None:
    app, bridge = App(), CeleryBridge(routes={"mail.*": "mail"})
    app.include(bridge)
    app.declare(*map(celery_queue, ("mail", "books", "results")))

    @bridge.task("shop.charge")
    async def charge(cents: int) -> int:
        return cents * 2

    def signature(task: str, *args: object, kind: str | None = None, **options: object) -> dict[str, Any]:
        return {
            "task": task,
            "args": args,
            "kwargs": {},
            "options": options,
            "subtask_type": kind,
            "immutable": False,
        }

    members = [signature("books.a", "x"), signature("books.b")]
    for member in members:
        member["options"]["queue"] = "books"
    group = {**signature("celery.group", kind="group", task_id="g"), "kwargs": {"tasks": members}}
    nested = {
        **signature("celery.chain", kind="chain"),
        "kwargs": {"tasks": [signature("mail.a"), signature("mail.b")]},
    }
    fixed = {**signature("mail.fixed", "only"), "immutable": True}
    embed = {
        "callbacks": [group, nested, fixed],
        "errbacks": [signature("mail.never")],
        "chain": [signature("mail.last"), signature("mail.next", "y", task_id="n", reply_to="elsewhere")],
        "chord": None,
    }
    async with warren.running(app):
        await put(app, [[21], {}, embed], reply_to="results", priority=None)  # type: ignore[arg-type]
        found = []
        for queue in ("books", "books", "mail", "mail", "mail"):
            message = await take(app, queue)
            args, _, more = json.loads(message.body)
            following = [each["task"] for each in more["chain"] or ()]
            found.append((message.headers["task"], args, message.headers["group"], following))
            assert (message.headers["root_id"], message.headers["parent_id"]) == ("1", "1")
        answer = json.loads((await take(app, "results")).body)
    assert found == [
        ("books.a", [42, "x"], "g", []),
        ("books.b", [42], "g", []),
        ("mail.a", [42], None, ["mail.b"]),
        ("mail.fixed", ["only"], None, []),
        ("mail.next", [42, "y"], None, ["mail.last"]),
    ]
    assert (message.headers["id"], message.properties["reply_to"]) == ("n", "elsewhere")
    assert len(answer["children"]) == 5
    assert answer["children"][-1] == [["n", None], None]


async def test_a_failure_reaches_the_end_of_the_chain_and_the_error_callbacks(warren: Warren) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    app.declare(*map(celery_queue, ("mail", "results")))

    @bridge.task("shop.charge")
    async def charge() -> None:
        raise DeadLetter("stolen card")

    following = {"task": "a", "options": {"task_id": "last", "reply_to": "results"}}
    embed = {"chain": [following], "errbacks": [{"task": "mail.failed", "options": {"queue": "mail"}}]}
    async with warren.running(app):
        await put(app, [[], {}, embed], reply_to="results")
        answers = [json.loads((await take(app, "results")).body) for _ in range(2)]
        failed = await take(app, "mail")
        dead = await take(app, f"{QUEUE}.dead")
    assert [(each["task_id"], each["status"]) for each in answers] == [("1", "FAILURE"), ("last", "FAILURE")]
    assert answers[0]["result"] == {
        "exc_type": "DeadLetter",
        "exc_message": ["stolen card"],
        "exc_module": "warren.sdk.errors",
    }
    assert json.loads(failed.body)[0] == ["1"]
    assert dead.headers["warren-dead-error"] == "DeadLetter: stolen card"


class Fatal(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), Fatal(Mute()), Mute(Mute())], ids=lambda error: type(error).__name__
)
async def test_the_client_gets_a_failure_of_every_kind(warren: Warren, error: BaseException) -> None:
    app, bridge = App(retry=Retry(1)), CeleryBridge()
    app.include(bridge)
    app.declare(celery_queue("results"))

    @bridge.task("shop.charge")
    async def charge() -> None:
        raise error

    async with warren.running(app):
        await put(app, [[], {}, {}], reply_to="results")
        answer = json.loads((await take(app, "results")).body)
        dead = await take(app, f"{QUEUE}.dead")
    assert (answer["status"], answer["result"]["exc_type"]) == ("FAILURE", type(error).__name__)
    assert dead.headers["warren-dead-error"].startswith(f"{type(error).__name__}: ")


async def test_a_duplicate_gets_the_stored_result(warren: Warren, tmp_path: Path) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    app.declare(celery_queue("results"))
    ran: list[str] = []

    @bridge.task("shop.charge", once=Once(SqliteStore(tmp_path / "once.sqlite", timeout=60)))
    async def charge(order_id: str) -> Decimal:
        ran.append(order_id)
        return Decimal("9.90")

    async with warren.running(app):
        answers = []
        for _ in range(2):
            await put(app, [["42"], {}, None], reply_to="results")
            answers.append(json.loads((await take(app, "results")).body)["result"])
    assert ran == ["42"]
    assert answers == [{"__type__": "decimal", "__value__": "9.90"}] * 2


async def test_outcomes_threads_and_tasks_without_results(warren: Warren) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    app.declare(celery_queue("results"))
    names: list[str] = []

    @bridge.task("shop.charge")
    def charge(*orders: int, request: CeleryRequest, **more: Decimal) -> object:
        names.append(threading.current_thread().name)
        assert current_request() is request
        return Ack() if not orders else (orders, more)

    async with warren.running(app):
        await put(app, [[], {}, {}], reply_to="results")
        await put(app, [[1, "2"], {"tip": 1}, {}], reply_to="results")
        await put(app, [[1], {}, {}], reply_to="results", headers={"ignore_result": True})
        await put(app, [[1], {}, {}], reply_to="gone")
        await put(app, [[3], {}, {}], reply_to="results")
        answers = [json.loads((await take(app, "results")).body)["result"] for _ in range(2)]
        assert await app.get("results") is None
    assert answers == [[[1, 2], {"tip": {"__type__": "decimal", "__value__": "1"}}], [[3], {}]]
    assert all(name.startswith("warren handler") for name in names)
    assert len(names) == 5


async def test_a_failed_task_returns_to_its_queue_if_it_cannot_be_dead_lettered() -> None:
    """Celery's queues have no dead letter exchange on the broker: a rejected task would be lost."""
    async with Broker() as broker, async_client(broker.url) as client:
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        await client.channel.declare_queue(f"{QUEUE}.dead", durable=True, arguments=full)  # type: ignore[arg-type]
        app, bridge = App(broker.url, mismatch="adopt"), CeleryBridge()
        app.include(bridge)
        ran = 0

        @bridge.task("shop.charge")
        async def charge() -> str:
            nonlocal ran
            ran += 1
            if ran < 3:
                raise ValueError("the bank does not answer")
            return "charged"

        @bridge.remote("shop.charge")
        def remote_charge() -> str:
            raise NotImplementedError

        async with app:
            result = await remote_charge.delay()
            with pytest.raises(CeleryTaskError, match="ValueError: the bank does not answer"):
                await result.get(60)
            async with asyncio.timeout(60):
                while bridge.statistics.succeeded < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert (ran, bridge.statistics.failed) == (3, 2)


async def test_the_queue_is_declared_with_the_arguments_of_celery() -> None:
    async with Broker() as broker, async_client(broker.url) as client:
        for name, arguments in (
            ("plain", {}),
            ("ranked", {"x-max-priority": 9}),
            ("safe", {"x-queue-type": "quorum"}),
        ):
            exchange = await client.channel.declare_exchange(name, aio_pika.ExchangeType.DIRECT, durable=True)
            queue = await client.channel.declare_queue(name, durable=True, arguments=arguments)  # type: ignore[arg-type]
            await queue.bind(exchange, name)
        app = App(broker.url)
        bridge = CeleryBridge(queue="plain")
        app.include(bridge)

        @bridge.remote("a", queue=celery_queue("ranked", max_priority=9))
        def one() -> None: ...

        @bridge.task("b", queue=celery_queue("safe", type="quorum"))
        async def two() -> None: ...

        @bridge.task("b", queue="plain")
        async def three() -> None: ...

        async with app:
            assert {"plain", "safe"} <= set(app.subscriptions)


@pytest.mark.parametrize(
    "value",
    [
        {"text": "ä", "number": 1.5, "nothing": None, "list": [True]},
        Decimal("9.90"),
        datetime(2026, 11, 23, 12, 30, tzinfo=UTC),
        date(2026, 11, 23),
        time(12, 30),
        UUID(int=7),
        b"text",
        b"\xff\x00",
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_keep_their_types(value: object) -> None:
    read = kombu_json.loads(kombu_json.dumps([value]))
    assert read == [value]
    assert type(read[0]) is type(value)


def with_depends(bridge: CeleryBridge) -> None:
    @bridge.task("a")
    async def task(order: Annotated[str, Header()]) -> None: ...


def with_delivery(bridge: CeleryBridge) -> None:
    @bridge.task("a")
    async def task(delivery: Delivery) -> None: ...


def twice(bridge: CeleryBridge) -> None:
    @bridge.task("a")
    async def first() -> None: ...

    bridge.task("a")(first)


def async_remote(bridge: CeleryBridge) -> None:
    @bridge.remote("a")
    async def task() -> None: ...


def unknown_option(bridge: CeleryBridge) -> None:
    @bridge.remote("a")
    def task() -> None: ...

    task.with_options(count_down=5)  # type: ignore[call-arg]


def two_kinds(bridge: CeleryBridge) -> None:
    @bridge.task("a", queue=celery_queue(QUEUE, type="quorum"))
    async def first() -> None: ...

    @bridge.task("b")
    async def second() -> None: ...


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (with_depends, "order of the task .* is no argument of a task"),
        (with_delivery, "take the message from a parameter of the type CeleryRequest"),
        (twice, "has a task 'a' already"),
        (async_remote, "write def, not async def"),
        (unknown_option, "no option 'count_down'"),
        (two_kinds, "is described twice"),
    ],
)
def test_mistakes_are_refused(mistake: Callable[[CeleryBridge], None], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        mistake(CeleryBridge())


async def test_a_bridge_without_an_app_and_an_eta_without_a_zone_are_refused(warren: Warren) -> None:
    bridge = CeleryBridge()

    @bridge.remote("a")
    def task(value: object) -> None: ...

    with pytest.raises(ConfigError, match=r"CeleryBridge belongs to no App: call app.include\(\.\.\.\)"):
        await task.delay(1)
    app = App()
    app.include(bridge)
    async with warren.running(app):
        with pytest.raises(ConfigError, match="eta=2026-11-23 00:00:00 has no time zone"):
            await task.with_options(eta=datetime(2026, 11, 23)).delay(1)
        with pytest.raises(TypeError, match="a set cannot be written as JSON for Celery"):
            await task.delay({1})
        with pytest.raises(ConfigError, match="add a handler before it starts"):

            @bridge.task("b")
            async def late() -> None: ...


async def test_a_task_that_is_async_behind_a_decorator_runs_and_answers(warren: Warren) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)
    app.declare(celery_queue("results"))

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return wrapper

    @bridge.task("shop.charge")
    @logged
    async def charge(cents: int) -> int:
        return cents + 1

    async with warren.running(app):
        await put(app, [[1], {}, None], reply_to="results")
        answer = json.loads((await take(app, "results")).body)
    assert (answer["status"], answer["result"]) == ("SUCCESS", 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"priority": 256}, "priority must be from 0 to 255, not 256"),
        ({"priority": True}, "priority must be a whole number, not True"),
        ({"retries": 1.5}, "retries must be a whole number, not 1.5"),
        ({"retries": -1}, "retries must be at least 0, not -1"),
        ({"time_limit": float("nan")}, "time_limit must be a finite number, not nan"),
        ({"soft_time_limit": 0}, "soft_time_limit must be above 0, not 0"),
        ({"countdown": float("inf")}, "inf is no duration: it must be finite"),
    ],
)
async def test_numbers_of_a_task_that_is_sent_are_checked(
    warren: Warren, options: dict[str, Any], text: str
) -> None:
    app, bridge = App(), CeleryBridge()
    app.include(bridge)

    @bridge.remote("shop.charge", ignore_result=True)
    def charge() -> None: ...

    async with warren.running(app):
        with pytest.raises(ConfigError, match=text):
            await charge.with_options(**options).delay()
