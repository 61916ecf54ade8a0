"""Misuse of the API: a mistake is refused at once, with one line that says what is wrong and what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import new_class
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from warren.patterns import (
    ClaimCheck,
    Deadline,
    Delay,
    MemoryStore,
    Once,
    Outbox,
    Partitions,
    RateLimit,
    RedisRateLimiter,
    RedisStore,
    Resequencer,
    RoutingSlips,
    Saga,
    SequenceNumbers,
    Store,
    Timers,
    TransactionalOnce,
    WorkQueue,
)
from warren.sdk import App, Command, ConfigError, DeadLetter, Event, Fault, Request, Router, Scatter


class Ping(Command, queue="ping"):
    pass


class Happened(Event, exchange="x", key="it.happened"):
    pass


class Ask(Request[int], queue="ask"):
    pass


class Offer(Scatter[int], exchange="offers", key="ask"):
    pass


async def ping(message: Ping) -> None: ...


async def happened(message: Happened) -> None: ...


async def pings(messages: list[Ping]) -> None: ...


async def words(message: Ask) -> str:
    return "nothing"


async def nothing(message: Ask) -> None: ...


async def number(message: Ask) -> int | DeadLetter:
    return 1


async def unknown(message: Ask):  # type: ignore[no-untyped-def]
    return 1


async def untyped(message) -> None: ...  # type: ignore[no-untyped-def]


def app() -> Any:
    return App("amqp://localhost")


def router() -> Any:
    return Router()


def command(**keywords: Any) -> object:
    return new_class("Sent", (Command,), keywords)


def event(**keywords: Any) -> object:
    return new_class("Told", (Event,), keywords)


def fault(**keywords: Any) -> object:
    return new_class("Broken", (Fault,), keywords)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            lambda: app().handle(ping),
            "app.handle takes the message class: write @app.handle(Ping) above ping",
        ),
        (
            lambda: app().handle(happened),
            "app.handle takes the message class: write @app.handle(Happened, queue=...) above happened",
        ),
        (
            lambda: app().handle(untyped),
            "app.handle takes the message class: write @app.handle(...) above untyped",
        ),
        (
            lambda: app().handle.batch(pings),
            "app.handle.batch takes the message class: write @app.handle.batch(Ping) above pings",
        ),
        (
            lambda: app().handle("ping"),
            "app.handle takes a message class, or a type that pydantic reads, not 'ping'",
        ),
        (
            lambda: app().handle(Ping()),
            "app.handle takes a message class, not a Ping: write app.handle(Ping)",
        ),
        (
            lambda: app().handle(Ping, concurency=3),
            "app.handle has no option 'concurency': did you mean concurrency=?",
        ),
        (
            lambda: app().handle.batch(Ping, lanes=3),
            "app.handle.batch has no option 'lanes': it takes queue, keys, size, within, concurrency, prefetch,"
            " breaker, retry, once",
        ),
        (
            lambda: app().handle(),
            "app.handle takes the message class: write @app.handle(ShipOrder) for a Command or Request, and"
            " @app.handle(OrderPlaced, queue='billing') for an Event",
        ),
        (
            lambda: app().handle(Happened, "billing"),
            "app.handle takes options by name only: write @app.handle(Happened, queue='billing')",
        ),
        (
            lambda: app().handle(Ping, "billing"),
            "app.handle takes options by name only, and Ping has its own queue 'ping': write @app.handle(Ping)",
        ),
        (
            lambda: router().handle(Happened, "billing"),
            "router.handle takes options by name only: write @router.handle(Happened, queue='billing')",
        ),
        (
            lambda: app().handle(Happened)(happened),
            "a handler of Happened needs queue=..., the queue that it consumes: write handle(Happened, queue='NAME')",
        ),
        (
            lambda: app().handle(Ping, once=True),
            "once= takes an idempotency, not True: write once=Once(store), with a store such as"
            " RedisStore('redis://HOST'), or once=NaturallyIdempotent; all are in warren.patterns",
        ),
        (
            lambda: router().handle.batch(Ping, once=MemoryStore()),
            "once= takes an idempotency, not an object of the type MemoryStore: write once=Once(store), with a store such"
            " as RedisStore('redis://HOST'), or once=NaturallyIdempotent; all are in warren.patterns",
        ),
        (lambda: app().handle(Ping, once=Once), "once=Once is a class: write once=Once(...)"),
        (
            lambda: App("amqp://localhost", delay=30),  # type: ignore[arg-type]
            "delay= takes a delay backend, not 30: write delay=Delay(), of warren.patterns",
        ),
        (
            lambda: App("amqp://localhost", delay=Delay),  # type: ignore[arg-type]
            "delay= takes a delay backend, not the class Delay: write Delay(...)",
        ),
        (
            lambda: app().include(Once(MemoryStore())),
            "app.include takes a router or component, not Once: write app.include(Router()), or app.include with a pattern"
            " of warren.patterns",
        ),
        (
            lambda: App("localhost:5672"),
            "not an AMQP URL: it must begin with amqp:// or amqps://, its scheme is none; write amqp://localhost:5672",
        ),
        (
            lambda: App("amqp://ann:se/cret@host"),
            "not an AMQP URL: its host or port cannot be read; write @ / : # ? in a user, a password or a virtual host as"
            " %40 %2F %3A %23 %3F",
        ),
        (
            lambda: App("amqp://ann:9#cret@host"),
            "not an AMQP URL: it contains a # or a second /; write @ / : # ? in a user, a password or a virtual host as"
            " %40 %2F %3A %23 %3F",
        ),
        (lambda: app().handle(Ping, retry=3), "retry=3 is no retry policy: write retry=Retry(3)"),
        (lambda: App("amqp://localhost", retry=3), "retry=3 is no retry policy: write retry=Retry(3)"),  # type: ignore[arg-type]
        (
            lambda: app().publishes(Ping()),
            "app.publishes takes message classes, not a Ping: write app.publishes(Ping)",
        ),
        (
            lambda: App("amqp://localhost", declare="sometimes"),  # type: ignore[arg-type]
            "declare is 'always' or 'never', not 'sometimes'",
        ),
        (
            lambda: App("amqp://localhost", mismatch="ignore"),  # type: ignore[arg-type]
            "mismatch is 'fail' or 'adopt', not 'ignore'",
        ),
        (
            lambda: App("amqp://localhost", replies="fast"),  # type: ignore[arg-type]
            "replies is 'queue' or 'direct', not 'fast'",
        ),
        (lambda: App("amqp://localhost", window=0), "window must be at least 1, not 0"),
        (lambda: App("amqp://localhost", grace=-1), "grace=-1 is no duration: it is negative"),
        (
            lambda: command(qeue="jobs"),
            "class Sent has no keyword 'qeue': did you mean queue=?",
        ),
        (
            lambda: command(exchange="jobs"),
            "class Sent has no keyword 'exchange': it takes queue, type, aliases, content_type, and"
            " pydantic's configuration",
        ),
        (
            lambda: event(queue="jobs"),
            "class Told has no keyword 'queue': it takes exchange, key, audience, mandatory, filter_by, type, aliases,"
            " content_type, and pydantic's configuration",
        ),
        (lambda: fault(cod="broken"), "class Broken has no keyword 'cod': did you mean code=?"),
        (
            lambda: Partitions("p", 2, key=str).handle(happened),  # type: ignore[arg-type]
            "Partitions.handle takes the message class: write @partitions.handle(Happened) above happened",
        ),
        (
            lambda: Resequencer("q", store=MemoryStore()).handle(ping),
            "Resequencer.handle takes the message class: write @resequencer.handle(Ping) above ping",
        ),
        (
            lambda: WorkQueue("q", priorities=2).handle(ping),
            "WorkQueue.handle takes the message class: write @work.handle(Ping) above ping",
        ),
        (
            lambda: Saga("s", Ping, store=MemoryStore(), key="key").starts(happened),  # type: ignore[type-var, arg-type]
            "Saga.starts takes the message class: write @saga.starts(Happened) above happened",
        ),
        (
            lambda: RoutingSlips(steps=[Ping], ends=[]).step(ping),  # type: ignore[type-var, arg-type]
            "RoutingSlips.step takes the step's Command: write @slips.step(Ping) above ping",
        ),
    ],
)
def test_a_mistake_is_refused_with_the_remedy(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        mistake()
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            Ping(),
            "app.call takes a Request, and Ping is a Command, which has no reply:"
            " app.publish it, or write class Ping(Request[...], queue=...)",
        ),
        (
            Happened(),
            "app.call takes a Request, and Happened is an Event, which has no reply: app.publish it",
        ),
        (Ping, "app.call takes a Request, not the class Ping: write app.call(Ping(...))"),
        ("ping", "app.call takes a Request, not a str"),
        (Offer(), "app.call takes a Request, and Offer is a Scatter: use app.gather"),
    ],
)
async def test_only_a_request_can_be_called(make_app: MakeApp, message: Any, text: str) -> None:
    async with make_app() as app:
        with pytest.raises(ConfigError) as refused:
            await app.call(message)
    assert str(refused.value) == text


async def test_only_a_request_or_scatter_can_be_gathered(make_app: MakeApp) -> None:
    message: Any = Ping()
    async with make_app() as app:
        with pytest.raises(
            ConfigError, match=r"^app.gather takes a Request or Scatter, and Ping is a Command"
        ):
            await app.gather(message)


@pytest.mark.parametrize("message", [Ping, Happened])
async def test_a_message_class_cannot_be_published(make_app: MakeApp, message: type) -> None:
    async with make_app() as app:
        with pytest.raises(ConfigError) as refused:
            await app.publish(message)
    name = message.__name__
    assert str(refused.value) == f"a message is published, not its class {name}: write {name}(...)"


async def test_a_publish_before_the_start_names_the_places_for_it() -> None:
    with pytest.raises(ConfigError) as refused:
        await App("memory://").publish(Ping())
    assert str(refused.value) == (
        "the App does not run: it has not started yet; publish and call in the block of `async with app:`, in a handler,"
        " or in a function with @app.on_start"
    )


@pytest.mark.parametrize("place", [app, router])
@pytest.mark.parametrize(("handler", "result"), [(words, "str"), (nothing, "None")])
def test_a_handler_must_return_the_reply_type(place: Callable[[], Any], handler: Any, result: str) -> None:
    with pytest.raises(ConfigError) as refused:
        place().handle(Ask)(handler)
    assert str(refused.value) == (
        f"the handler {handler.__name__} returns {result}, but Ask is answered with int: correct one of them"
    )


@pytest.mark.parametrize("handler", [number, unknown])
def test_a_result_that_may_be_the_reply_passes(handler: Any) -> None:
    place = app()
    place.handle(Ask)(handler)
    with pytest.raises(ConfigError, match=f"has a handler for Ask already, {handler.__name__},"):
        place.handle(Ask)(handler)


def test_a_second_handler_of_a_queue_is_refused_with_both_names() -> None:
    place = app()
    place.handle(Happened, queue="billing")(happened)
    for second, text in (
        (
            Happened,
            "queue 'billing' has a handler for Happened already, happened, and a message goes to one handler of its queue:"
            " happened cannot be another; bind another queue for it, @app.handle(..., queue='ANOTHER'), to get a copy of"
            " each message",
        ),
        (
            bytes,
            "queue 'billing' has a handler for all its messages already: happened takes Happened, and a second one, untyped"
            " for bytes, needs a queue of its own",
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            place.handle(second, queue="billing")(happened if second is Happened else untyped)
        assert str(refused.value) == text


STORES = "RedisStore('redis://HOST'), PostgresStore('postgresql://HOST/DATABASE') or SqliteStore('FILE')"
REDIS: Any = "redis://ann:s3cret@host"
TAKERS: list[tuple[str, Callable[[Any], object]]] = [
    ("Once", lambda store: Once(store)),
    (
        "Deadline d",
        lambda store: Deadline("d", after=1, signal=lambda key: Ping(), store=store),
    ),
    ("Delay warren.delay", lambda store: Delay(store=store)),
    ("Resequencer q", lambda store: Resequencer("q", store=store)),
    ("Saga s", lambda store: Saga("s", Ping, store=store, key="key")),
    ("SequenceNumbers n", lambda store: SequenceNumbers("n", store=store)),
    ("Timers t", lambda store: Timers("t", store=store, sends=[Ping])),
]


@pytest.mark.parametrize(("owner", "take"), TAKERS)
@pytest.mark.parametrize(
    ("store", "text"),
    [
        (REDIS, "the text 'redis://ann:***@host': write RedisStore('redis://ann:***@host')"),
        (
            "postgresql://host/shop",
            "the text 'postgresql://host/shop': write PostgresStore('postgresql://host/shop')",
        ),
        ("shop.db", "the text 'shop.db': write SqliteStore('shop.db')"),
        (True, f"True: write {STORES}"),
        ({}, f"a dict: write {STORES}"),
        (RedisStore, "the class RedisStore: write RedisStore(...)"),
    ],
)
def test_a_pattern_refuses_what_is_no_store(
    owner: str, take: Callable[[Any], object], store: Any, text: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        take(store)
    assert str(refused.value) == f"{owner} takes a store, not {text}"


class Unlistable:
    """Store that cannot list its records."""

    compare_and_set = close = None


def test_a_pattern_that_lists_records_refuses_a_store_that_cannot() -> None:
    store: Any = Unlistable()
    for take in (lambda: Timers("t", store=store, sends=[Ping]), lambda: Delay(store=store)):
        with pytest.raises(
            ConfigError, match="needs a store with the method records, which an Unlistable lacks"
        ):
            take()
    Once(store)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            lambda store: Once(store, key="order_id"),  # type: ignore[arg-type]
            "Once: key takes a function, not the text 'order_id': write key=lambda message: message.order_id",
        ),
        (
            lambda store: Once(store, on_store_failure="open"),  # type: ignore[arg-type]
            "Once: on_store_failure is 'fail_closed' or 'fail_open', not 'open'",
        ),
        (
            lambda store: Delay(strategy="ladder"),  # type: ignore[arg-type]
            "Delay warren.delay takes a delay strategy, not the text 'ladder': write BinaryDelayQueues() or"
            " DelayedExchange()",
        ),
        (
            lambda store: RateLimit(50, queues=["payments"]),  # type: ignore[arg-type]
            "RateLimit takes a rate limiter, not 50: write RedisRateLimiter(RedisStore('redis://HOST'), 'NAME', 50,"
            " per='1s') or LocalRateLimiter(50, per='1s')",
        ),
        (
            lambda store: RedisRateLimiter(store, "name", 50, per="1s"),
            "RedisRateLimiter takes a RedisStore, not a MemoryStore: write RedisStore('redis://HOST')",
        ),
        (
            lambda store: ClaimCheck("/srv/blobs"),  # type: ignore[arg-type]
            "ClaimCheck takes a blob store, not the text '/srv/blobs': write FolderBlobStore('FOLDER') or"
            " S3BlobStore('BUCKET')",
        ),
        (
            lambda store: Outbox("postgresql://host/shop"),  # type: ignore[arg-type]
            "Outbox takes an async_sessionmaker, not the text 'postgresql://host/shop': write"
            " async_sessionmaker(create_async_engine('postgresql+asyncpg://HOST/DATABASE'))",
        ),
        (
            lambda store: TransactionalOnce(store),
            "TransactionalOnce takes an async_sessionmaker, not a MemoryStore: write"
            " async_sessionmaker(create_async_engine('postgresql+asyncpg://HOST/DATABASE'))",
        ),
        (
            lambda store: RoutingSlips(steps=[Ping], ends=[], retry=3),  # type: ignore[arg-type]
            "retry=3 is no retry policy: write retry=Retry(3)",
        ),
    ],
)
def test_a_pattern_checks_what_it_is_created_with(mistake: Callable[[Any], object], text: str) -> None:
    store: Store = MemoryStore()
    with pytest.raises(ConfigError) as refused:
        mistake(store)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("package", "name", "other"),
    [("warren.sdk", "Once", "warren.patterns"), ("warren.patterns", "App", "warren.sdk")],
)
def test_an_import_from_the_wrong_package_names_the_right_one(package: str, name: str, other: str) -> None:
    with pytest.raises(ImportError) as refused:
        exec(f"from {package} import {name}")
    assert str(refused.value) == f"{name} is in {other}, not in {package}: write `from {other} import {name}`"
    with pytest.raises(ImportError, match=f"cannot import name 'nonsense' from '{package}'"):
        exec(f"from {package} import nonsense")


FORMS = "write a timedelta, a number of seconds, or a text such as 250ms, 5s, 30m or 1h30m"


@pytest.mark.parametrize("after", [30, "30s", timedelta(seconds=30), "1h30m", "250ms"])
def test_a_deadline_takes_every_form_of_a_duration(after: Any) -> None:
    Deadline("payment", after=after, signal=lambda key: Ping(), store=MemoryStore())


@pytest.mark.parametrize(
    ("after", "text"),
    [
        ("half an hour", f"'half an hour' is no duration: {FORMS}"),
        (None, f"None is no duration: {FORMS}"),
        ("30", "'30' has no unit: write 30s for seconds, or ms, m, h, d"),
        (True, f"True is no duration: {FORMS}"),
        ("1h-30m", f"'1h-30m' is no duration: {FORMS}"),
        (float("inf"), "inf is no duration: it must be finite"),
        (float("nan"), "nan is no duration: it must be finite"),
        (1e300, "1e+300 is too long: the longest is 999999999d"),
        (-1, "-1 is no duration: it is negative"),
    ],
)
def test_what_is_no_duration_is_refused(after: Any, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Deadline("payment", after=after, signal=lambda key: Ping(), store=MemoryStore())
    assert str(refused.value) == f"Deadline: after={text}"


@pytest.mark.parametrize("reliability", ["exactly_once", "at_most_onse"])
async def test_an_unknown_reliability_is_refused(make_app: MakeApp, reliability: Any) -> None:
    async with make_app() as app:
        with pytest.raises(ConfigError) as refused:
            await app.publish(b"x", key="ping", reliability=reliability)
    assert str(refused.value) == (
        f"reliability is 'at_least_once' or 'at_most_once', not {reliability!r};"
        " for effects that happen once, publish at least once and handle with once="
    )


@pytest.mark.parametrize(
    "decorate",
    [
        lambda plain: RoutingSlips(steps=[Ping], ends=[]).step(Ping)(plain),
        lambda plain: RoutingSlips(steps=[Ping], ends=[]).step(Ping)(ping).compensate(plain),
        lambda plain: Resequencer("q", store=MemoryStore()).handle(Ping)(plain),
    ],
)
def test_a_pattern_that_calls_its_handlers_on_the_loop_refuses_plain_ones(
    decorate: Callable[[Any], object],
) -> None:
    def plain(message: Ping) -> None: ...

    with pytest.raises(ConfigError, match="plain must be an async function: only"):
        decorate(plain)
