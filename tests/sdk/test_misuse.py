"""Misuse of the API: a mistake is refused at once, with one line that says what is wrong and what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import new_class
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from warren.patterns import Deadline, Partitions, Resequencer, RoutingSlips, Saga, SqliteStore, WorkQueue
from warren.sdk import App, Command, ConfigError, Event, Fault, Request, Scatter


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


async def untyped(message) -> None: ...  # type: ignore[no-untyped-def]


def app() -> Any:
    return App("amqp://localhost")


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
            lambda: Resequencer("q", store=SqliteStore(":memory:")).handle(ping),
            "Resequencer.handle takes the message class: write @resequencer.handle(Ping) above ping",
        ),
        (
            lambda: WorkQueue("q", priorities=2).handle(ping),
            "WorkQueue.handle takes the message class: write @work.handle(Ping) above ping",
        ),
        (
            lambda: Saga("s", Ping, store=SqliteStore(":memory:"), key="key").starts(happened),  # type: ignore[type-var, arg-type]
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


FORMS = "write a timedelta, a number of seconds, or a text such as 250ms, 5s, 30m or 1h30m"


@pytest.mark.parametrize("after", [30, "30s", timedelta(seconds=30), "1h30m", "250ms"])
def test_a_deadline_takes_every_form_of_a_duration(after: Any) -> None:
    Deadline("payment", after=after, signal=lambda key: Ping(), store=SqliteStore(":memory:"))


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
        Deadline("payment", after=after, signal=lambda key: Ping(), store=SqliteStore(":memory:"))
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
        lambda plain: Resequencer("q", store=SqliteStore(":memory:")).handle(Ping)(plain),
    ],
)
def test_a_pattern_that_calls_its_handlers_on_the_loop_refuses_plain_ones(
    decorate: Callable[[Any], object],
) -> None:
    def plain(message: Ping) -> None: ...

    with pytest.raises(ConfigError, match="plain must be an async function: only"):
        decorate(plain)
