"""Durations: every parameter that is one takes a `timedelta`, seconds or a text, and refuses others by its name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from types import FunctionType
from typing import Any

import pytest

import warren.patterns
import warren.sdk
from tests.sdk.conftest import MakeApp
from warren.core.durations import parse_seconds
from warren.patterns import LocalRateLimiter, MemoryStore, Once, SequenceNumbers, SqliteStore, wait_queue
from warren.sdk import App, BatchError, Capture, CircuitBreaker, ConfigError, Queue, RetryLater
from warren.sdk.extend import seconds
from warren.testing import Warren

NOT_OF_USERS = {
    # Callbacks of the SDK, which passes a timedelta.
    "reach",
    "redeliver",
    "entry",
    # A time that an error reports.
    "RateLimitExceeded.__init__",
    # Called by the SDK.
    "GatherCall.__init__",
    "Transaction.__init__",
    "Subscription.stop",
    "StreamSubscription.stop",
    # Its overloads take a `Duration`; the fields are `timedelta`, which dataclasses generate the signature from.
    "Queue.__init__",
    # `seconds` and the like name their unit, as those of `timedelta` do.
    "sleep",
}


def public_functions() -> Iterator[tuple[str, FunctionType]]:
    for module in (warren.sdk, warren.patterns):
        for name in module.__all__:
            held = getattr(module, name)
            if isinstance(held, FunctionType):
                yield name, held
            elif isinstance(held, type):
                for method in vars(held).values():
                    function = getattr(method, "__func__", method)
                    if isinstance(function, FunctionType) and (
                        not function.__name__.startswith("_") or function.__name__ == "__init__"
                    ):
                        yield f"{name}.{function.__name__}", function
    for method in vars(Warren).values():
        if isinstance(method, FunctionType) and not method.__name__.startswith("_"):
            yield f"Warren.{method.__name__}", method


def test_every_public_parameter_that_is_a_duration_takes_all_forms() -> None:
    fixed = [
        f"{name}({parameter.name}: {parameter.annotation})"
        for name, function in public_functions()
        if name not in NOT_OF_USERS and name.split(".")[-1] not in NOT_OF_USERS
        for parameter in inspect.signature(function).parameters.values()
        if "timedelta" in str(parameter.annotation)
        or (
            parameter.name in {"timeout", "grace", "within", "wait", "patience", "lease", "keep", "after"}
            and "float" in str(parameter.annotation)
        )
    ]
    assert fixed == []


def test_durations_of_values_are_equal_in_every_form() -> None:
    assert (
        Queue("q", message_ttl="1m30s")
        == Queue("q", message_ttl=90)
        == Queue("q", message_ttl=timedelta(seconds=90))
    )
    assert Queue("q", message_ttl="1m30s").message_ttl == timedelta(seconds=90)
    assert Queue("s", max_age="7d").wire_arguments()["x-max-age"] == "604800s"
    assert wait_queue("q", "250ms") == wait_queue("q", 0.25)
    assert Capture(within="250ms", max_age="1d").queue() == Capture(max_age=timedelta(days=1)).queue()
    assert RetryLater("5s").after == "5s"
    assert [parse_seconds(text) for text in ("5", "5s", " 0.5 ", "1m")] == [5, 5, 0.5, 60]


@pytest.mark.parametrize("text", ["9" * 400, "9" * 20, f"{'9' * 400}s"])
def test_an_option_that_is_longer_than_all_durations_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'9+(\.\.\.|')? ?i?s? ?.*too long: the longest is 999999999d$"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: App("memory://", grace=-1), "grace=-1 is no duration: it is negative"),
        (
            lambda: App("memory://", connect_timeout=True),
            "connect_timeout=True is no duration: write a timedelta",
        ),
        (
            lambda: App("memory://", stall_threshold="5"),
            "stall_threshold='5' has no unit: write 5s for seconds",
        ),
        (lambda: App("memory://").transaction(timeout="-5s"), "timeout='-5s' is no duration: it is negative"),
        (lambda: Queue("q", expires="soon"), "queue 'q': expires='soon' is no duration"),
        (lambda: CircuitBreaker(pause="soon"), "CircuitBreaker: pause='soon' is no duration"),
        (lambda: Capture(within=0), "capture: within must be more than 0"),
        (
            lambda: Once(MemoryStore(), keep=float("nan")),
            "Once: keep=nan is no duration: it must be finite",
        ),
        (
            lambda: Once(MemoryStore(), keep=10**400),
            "Once: keep=1" + "0" * 36 + "... is too long: the longest is 999999999d",
        ),
        (lambda: LocalRateLimiter(1, per=-1), "LocalRateLimiter: per=-1 is no duration: it is negative"),
        (lambda: SqliteStore("orders.db", timeout=0), "SqliteStore: timeout must be more than 0"),
        (
            lambda: SequenceNumbers("n", store=MemoryStore(), keep="x" * 99),
            "SequenceNumbers: keep='" + "x" * 36 + "... is no duration",
        ),
    ],
)
def test_a_wrong_duration_is_refused_by_name(make: Any, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value).startswith(text)
    assert "\n" not in str(refused.value)


def test_numbers_of_seconds_stay_as_they_are() -> None:
    assert [seconds(value) for value in (0.1, 3, "1.5s", timedelta(minutes=1), 0)] == [0.1, 3, 1.5, 60, 0]


async def test_timeouts_of_an_app_can_be_text(make_app: MakeApp) -> None:
    async with make_app() as app:
        queue = Queue("durations", type="classic", dead_letter_exchange=None)
        await app.declare_now(queue)
        await app.publish(b"x", key="durations", timeout="30s", expiration="1h")
        report = await app.publish_many([b"y"], key="durations", timeout=timedelta(seconds=30))
        assert report.total == 1
        got = await app.get("durations", timeout="5s")
        assert got is not None
        assert got.properties["expiration"] == "3600000"
        await got.ack()
        with pytest.raises(ConfigError, match=r"^timeout=nan is no duration"):
            await app.publish(b"x", key="durations", timeout=float("nan"))
        with pytest.raises(BatchError) as refused:
            await app.publish_many([b"x"], key="nowhere", timeout="30s")
        assert len(refused.value.report.failures) == 1
