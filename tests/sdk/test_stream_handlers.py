"""Handlers on streams: position, resume, order, failures and the active reader."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    App,
    Command,
    ConfigError,
    Delivery,
    Event,
    Queue,
    ReplayReport,
    ReplayStopped,
    Requeue,
    Retry,
    Router,
    StreamSubscription,
)
from warren.sdk.consume.streams.reader_lease import ReaderLease
from warren.sdk.consume.subscription import Mode


class Counted(Event, exchange="", key=""):
    number: int


def counted(name: str) -> type[Any]:
    class Happened(Event, exchange=f"{name}.events", key="happened"):
        number: int
        region: str = "eu"

    return Happened


async def publish(app: App, kind: type[Any], numbers: range) -> None:
    for number in numbers:
        await app.publish(kind(number=number))


async def test_a_handler_reads_a_stream_from_its_first_message_on(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[tuple[int, int | None]] = []

    @app.handle(Happened, stream=name, offset="first")
    async def project(message: Any, delivery: Delivery) -> None:
        seen.append((message.number, delivery.offset))

    async with app:
        await publish(app, Happened, range(3))
        await eventually(lambda: len(seen) == 3, "all messages are handled")
    async with app:
        await eventually(lambda: len(seen) == 6, "without resume each start reads from the first message")
    assert seen == [(0, 0), (1, 1), (2, 2)] * 2


async def test_the_next_start_resumes_behind_the_last_handled_message(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []

    @app.handle(Happened, stream=name, offset="first", resume=True)
    async def project(message: Any) -> None:
        seen.append(message.number)

    async with app:
        await publish(app, Happened, range(5))
        await eventually(lambda: len(seen) == 5, "all messages are handled")
    async with app:
        await publish(app, Happened, range(5, 8))
        await eventually(lambda: len(seen) >= 8, "the new messages are handled")
    assert seen == list(range(8))


@pytest.mark.parametrize(
    "offset",
    [
        pytest.param("next", id="next"),
        pytest.param(2, id="number"),
        pytest.param(datetime(2100, 1, 1, tzinfo=UTC), id="future"),
    ],
)
async def test_a_reader_begins_at_its_offset(make_app: MakeApp, name: str, offset: Any) -> None:
    Happened = counted(name)
    writer, app = make_app(), make_app()
    stream = Queue(name, type="stream", max_age=timedelta(days=1))
    writer.declare(stream)

    @writer.handle(Happened, stream=stream, reader="writer")
    async def ignore(message: Any) -> None:
        pass

    seen: list[int] = []

    @app.handle(Happened, stream=stream, offset=offset)
    async def project(message: Any) -> None:
        seen.append(message.number)

    async with writer:
        await publish(writer, Happened, range(3))
        async with app:
            await publish(writer, Happened, range(3, 5))
            await eventually(lambda: 4 in seen, "the reader gets messages")
    assert seen == list(range(2 if offset == 2 else 3, 5))


async def test_a_reader_handles_one_message_at_a_time_in_order(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    running, most, seen = 0, 0, []

    @app.handle(Happened, stream=name, offset="first")
    async def project(message: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        seen.append(message.number)

    async with app:
        await app.publish_many([Happened(number=number) for number in range(300)])
        await eventually(lambda: len(seen) == 300, "all messages are handled")
    assert seen == list(range(300))
    assert most == 1


async def test_a_slow_key_holds_the_stored_position_back(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []
    blocked = asyncio.Event()

    @app.handle(
        Happened, stream=name, offset="first", resume=True, concurrency=3,
        ordered_by=lambda message: message.number % 3, store_every=1,
    )  # fmt: skip
    async def project(message: Any) -> None:
        if message.number == 1 and not blocked.is_set():
            await blocked.wait()
        seen.append(message.number)

    async with app:
        await app.publish_many([Happened(number=number) for number in range(9)])
        await eventually(lambda: len(seen) == 6, "the other keys are handled")
        reader = app.subscriptions[f"{name}.project"]
        assert isinstance(reader, StreamSubscription)
        assert reader.position == 1
        await reader.stop(0.0)
    blocked.set()
    async with app:
        await eventually(lambda: set(range(9)) <= set(seen), "the reader resumes at the slow message")
    assert seen[6] == 1


async def test_a_reader_goes_no_further_ahead_of_its_position_than_its_prefetch(
    make_app: MakeApp, name: str
) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []
    blocked = asyncio.Event()

    @app.handle(
        Happened, stream=name, offset="first", resume=True, concurrency=2, prefetch=10,
        ordered_by=lambda message: message.number == 0,
    )  # fmt: skip
    async def project(message: Any) -> None:
        if message.number == 0:
            await blocked.wait()
        seen.append(message.number)

    @app.handle(Happened, stream=name, reader="all", offset="first")
    async def pass_by(message: Any) -> None:
        if message.number == 49:
            passed.set()

    passed = asyncio.Event()
    async with app:
        await publish(app, Happened, range(50))
        await passed.wait()
        await eventually(lambda: len(seen) >= 9, "the messages within the prefetch limit are handled")
        behind = max(seen)
        blocked.set()
        await eventually(lambda: len(seen) == 50, "the reader goes on when its position moves")
    assert behind < 50 - 1
    assert sorted(seen) == list(range(50))


async def test_a_reader_goes_on_when_retention_removed_the_message_before_which_it_stopped(
    make_app: MakeApp, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    stream = Queue(name, type="stream", max_length_bytes=8192, max_segment_size_bytes=4096)
    seen: list[int] = []

    @app.handle(
        bytes,
        stream=stream,
        reader="one",
        offset="first",
        resume=True,
        prefetch=5,
        on_error="stop",
        retry=Retry(1),
    )
    async def project(body: bytes, delivery: Delivery) -> None:
        if delivery.offset == 0:
            raise ValueError("broken")
        if body == b"last":
            seen.append(delivery.offset or 0)

    async with app:
        reader = app.subscriptions[f"{name}.one"]
        assert isinstance(reader, StreamSubscription)
        await app.publish(b"0", exchange="", key=name)
        await eventually(lambda: reader.error is not None, "the reader stops")
        for _ in range(100):
            await app.publish(bytes(1000), exchange="", key=name)
        await app.publish(b"last", exchange="", key=name)
        await reader.resume()
        await eventually(lambda: len(seen) == 1, "the reader goes on behind what is gone")
        await eventually(lambda: reader.position == seen[0] + 1, "its position moves")
    assert "event=stream_reader.messages_missed" in caplog.text


async def test_a_failed_message_is_repeated_in_place(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[tuple[int, int]] = []

    @app.handle(Happened, stream=name, offset="first", retry=Retry(1).then("10ms", "10ms"))
    async def project(message: Any, delivery: Delivery) -> None:
        seen.append((message.number, delivery.attempt))
        if message.number == 1 and delivery.attempt < 3:
            raise ValueError("not yet")
        if message.number == 2 and len(seen) < 6:
            raise Requeue

    async with app:
        await publish(app, Happened, range(4))
        await eventually(lambda: (3, 1) in seen, "the last message is handled")
    assert seen == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]


async def test_a_message_that_keeps_failing_is_dead_lettered_with_its_offset(
    make_app: MakeApp, name: str
) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []

    @app.handle(Happened, stream=name, offset="first", resume=True, retry=Retry(1))
    async def project(message: Any) -> None:
        if message.number == 1:
            raise ValueError("broken")
        seen.append(message.number)

    async with app:
        await publish(app, Happened, range(3))
        await eventually(lambda: seen == [0, 2], "the reader goes on")
        dead = await app.get(f"{name}.project.dead", timeout=30)
        assert dead is not None
        assert dead.headers["warren-dead-queue"] == name
        assert dead.headers["warren-dead-reader"] == "project"
        assert dead.headers["warren-dead-reason"] == "failed"
        assert dead.offset == 1
        await dead.ack()


async def test_a_router_prefixes_its_streams(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    router = Router(prefix=f"{name}.")
    seen: list[int] = []

    @router.handle(Happened, stream="log", offset="first", resume=True)
    async def project(message: Any) -> None:
        seen.append(message.number)

    app = make_app()
    app.include(router)
    async with app:
        await publish(app, Happened, range(2))
        await eventually(lambda: seen == [0, 1], "all messages are handled")
        assert list(app.subscriptions) == [f"{name}.log.project"]


async def test_skip_goes_on_and_counts(
    make_app: MakeApp, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []

    @app.handle(Happened, stream=name, offset="first", on_error="skip", retry=Retry(1))
    async def project(message: Any) -> None:
        if message.number == 1:
            raise ValueError("broken")
        seen.append(message.number)

    async with app:
        await publish(app, Happened, range(3))
        await eventually(lambda: seen == [0, 2], "the reader goes on")
        assert app.statistics().handlers[f"{name}.project"].skipped == 1
    assert "event=stream_reader.message_skipped" in caplog.text


async def test_stop_stays_before_the_message_until_the_reader_is_resumed(
    make_app: MakeApp, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []
    broken = True

    @app.handle(Happened, stream=name, offset="first", resume=True, on_error="stop", retry=Retry(1))
    async def project(message: Any) -> None:
        if message.number == 1 and broken:
            raise ValueError("broken")
        seen.append(message.number)

    async with app:
        await publish(app, Happened, range(3))
        reader = app.subscriptions[f"{name}.project"]
        await eventually(lambda: reader.error is not None, "the reader stops")
        assert seen == [0]
        assert "offset 1" in (app.health().reason or "")
    assert "event=stream_reader.stopped" in caplog.text
    async with app:
        await eventually(
            lambda: app.subscriptions[f"{name}.project"].error is not None, "it stops there again"
        )
        broken = False
        await app.subscriptions[f"{name}.project"].resume()
        await eventually(lambda: seen == [0, 1, 2], "the reader goes on where it stopped")


async def test_messages_of_other_types_are_passed_over(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)

    class Other(Event, exchange=f"{name}.events", key="other"):
        pass

    app = make_app()
    seen: list[Any] = []

    @app.handle(Happened, stream=name, offset="first")
    async def project(message: Any) -> None:
        seen.append(message.number)

    @app.handle(Other, stream=name, offset="first", reader="other")
    async def other(message: Other) -> None:
        seen.append("other")

    async with app:
        await app.publish(Other())
        await app.publish(Happened(number=1))
        await eventually(lambda: len(seen) == 2, "both are handled")
        await eventually(
            lambda: app.statistics().handlers[f"{name}.project"].passed_over == 1, "one is passed over"
        )
        assert app.statistics().handlers[f"{name}.project"].dead_lettered == 0


async def test_one_process_reads_and_another_takes_over(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    apps = [make_app(), make_app()]
    seen: list[tuple[int, int]] = []

    def register(index: int) -> None:
        @apps[index].handle(Happened, stream=name, offset="first", resume=True, reader="one")
        async def project(message: Any) -> None:
            seen.append((index, message.number))

    register(0)
    register(1)
    async with apps[0], apps[1]:
        assert apps[1].ready
        other = apps[1].subscriptions[f"{name}.one"]
        assert isinstance(other, StreamSubscription)
        assert other.stands_by
        await publish(apps[1], Happened, range(5))
        await eventually(lambda: len(seen) == 5, "the active reader handles the messages")
        await apps[0].stop()
        await publish(apps[1], Happened, range(5, 8))
        await eventually(lambda: len(seen) >= 8, "the other one takes over")
    assert seen == [(0, number) for number in range(5)] + [(1, number) for number in range(5, 8)]


def two_processes(make_app: MakeApp, name: str) -> tuple[type[Event], list[App], list[int]]:
    """Return an event, two Apps with the same reader of its stream, and a list of the Apps, 0 or 1, that handled one."""
    Happened = counted(name)
    apps = [make_app(), make_app()]
    seen: list[int] = []

    def register(app: App, index: int) -> None:
        @app.handle(Happened, stream=name, offset="first", resume=True, reader="one")
        async def project(message: Any) -> None:
            seen.append(index)

    for index, app in enumerate(apps):
        register(app, index)
    return Happened, apps, seen


async def test_a_reader_that_stands_by_can_be_paused_and_resumed(make_app: MakeApp, name: str) -> None:
    Happened, apps, seen = two_processes(make_app, name)
    async with apps[0], apps[1]:
        other = apps[1].subscriptions[f"{name}.one"]
        assert isinstance(other, StreamSubscription)
        await other.pause()
        await other.resume()
        assert other.mode is Mode.CONSUMING
        await other.pause()
        await eventually(lambda: not other.stands_by, "it does not wait any more")
        await other.resume()
        assert other.stands_by
        await apps[0].stop()
        await publish(apps[1], Happened, range(1))
        await eventually(lambda: seen == [1], "it takes over")


async def test_a_cancelled_reader_gives_way(make_app: MakeApp, name: str) -> None:
    Happened, apps, seen = two_processes(make_app, name)
    async with apps[0], apps[1]:
        await apps[0].subscriptions[f"{name}.one"].cancel()
        await publish(apps[0], Happened, range(1))
        await eventually(lambda: seen == [1], "the other process reads")


async def test_a_lost_lease_stops_the_reader_and_a_new_one_resumes(
    make_app: MakeApp, name: str, amqp_client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "warren.sdk")
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []

    @app.handle(Happened, stream=name, offset="first", resume=True)
    async def project(message: Any) -> None:
        seen.append(message.number)

    async with app:
        await publish(app, Happened, range(3))
        await eventually(lambda: len(seen) == 3, "all messages are handled")
        await amqp_client.channel.queue_delete(f"{name}.project.position")
        await eventually(
            lambda: caplog.text.count("event=stream_reader.became_active") == 2, "the reader has a new lease"
        )
        await publish(app, Happened, range(3, 6))
        await eventually(lambda: len(seen) >= 6, "the reader continues")
    async with app:
        await publish(app, Happened, range(6, 7))
        await eventually(lambda: len(seen) >= 7, "its position was stored again")
    assert seen == list(range(7))


async def test_reconnecting_skips_and_repeats_nothing(make_app: MakeApp, name: str, proxy: Any) -> None:
    Happened = counted(name)
    app, writer = make_app(proxy.url), make_app()
    seen: list[int] = []

    @app.handle(Happened, stream=name, offset="next", resume=True)
    async def project(message: Any) -> None:
        seen.append(message.number)

    async with app, writer:
        proxy.cut()
        await publish(writer, Happened, range(5))
        await eventually(lambda: len(seen) == 5, "the messages that were published meanwhile are handled")
        proxy.cut()
        await publish(writer, Happened, range(5, 10))
        await eventually(lambda: len(seen) >= 10, "the reader continues")
    assert seen == list(range(10))


async def test_a_filter_selects_messages_by_a_field(make_app: MakeApp, name: str) -> None:
    class Sold(Event, exchange=f"{name}.events", key="sold", filter_by="region"):
        number: int
        region: str | None

    app = make_app()
    seen: dict[str, list[int]] = {"eu": [], "some": [], "unfiltered": []}

    @app.handle(Sold, stream=name, offset="first", resume=True, filter="eu")
    async def eu(message: Sold) -> None:
        seen["eu"].append(message.number)

    @app.handle(Sold, stream=name, offset="first", filter=["us", "asia"])
    async def some(message: Sold) -> None:
        seen["some"].append(message.number)

    @app.handle(Sold, stream=name, offset="first", filter="us", match_unfiltered=True)
    async def unfiltered(message: Sold) -> None:
        seen["unfiltered"].append(message.number)

    regions = ["eu", "us", None, "asia", "eu"]
    expected = {"eu": [0, 4], "some": [1, 3], "unfiltered": [1, 2]}
    async with app:
        for number, region in enumerate(regions):
            await app.publish(Sold(number=number, region=region))
        await eventually(lambda: seen == expected, "each reader gets its messages")
        report = await app.replay_stream(name, reader="some")
        assert (report.delivered, report.first, report.last) == (2, 1, 3)
    seen["eu"].clear()
    async with app:
        await app.publish(Sold(number=5, region="eu"))
        await eventually(
            lambda: seen["eu"] == [5], "the reader resumes behind the last message of its filter"
        )


def test_a_filter_field_must_exist() -> None:
    with pytest.raises(ConfigError, match="filter_by='regin' is no field; its fields are region"):

        class Sold(Event, exchange="events", key="sold", filter_by="regin"):
            region: str


async def test_a_replay_runs_the_handler_again_and_keeps_the_position(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[tuple[int, bool]] = []

    @app.handle(Happened, stream=name, offset="first", resume=True)
    async def project(message: Any, delivery: Delivery) -> None:
        seen.append((message.number, delivery.replayed))

    async with app:
        await publish(app, Happened, range(5))
        await eventually(lambda: len(seen) == 5, "all messages are handled")
        seen.clear()
        report = await app.replay_stream(name, start=1, end=4)
        assert report == ReplayReport(3, 1, 3)
        assert seen == [(number, True) for number in (1, 2, 3)]
        report = await app.replay_stream(name, reader="project", start=timedelta(hours=1))
        assert report == ReplayReport(5, 0, 4)
        assert (await app.replay_stream(name, start=5)).delivered == 0
        assert (await app.replay_stream(name, end=datetime(2020, 1, 1, tzinfo=UTC))).delivered == 0
        assert (await app.replay_stream(name, start=datetime(2100, 1, 1, tzinfo=UTC))).delivered == 0
        with pytest.raises(ConfigError, match="'project'"):
            await app.replay_stream(name, reader="other")
        with pytest.raises(ConfigError, match="replays nothing"):
            await app.replay_stream(name, start="next")
        seen.clear()
        await publish(app, Happened, range(5, 6))
        await eventually(lambda: len(seen) == 1, "the reader goes on")
    async with app:
        await publish(app, Happened, range(6, 7))
        await eventually(lambda: len(seen) >= 2, "it resumes where it was")
    assert seen == [(5, False), (6, False)]


async def test_a_replay_covers_a_long_stream_and_stops_at_a_failure(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []
    broken = False

    @app.handle(Happened, stream=name, offset="first", on_error="stop", retry=Retry(1))
    async def project(message: Any) -> None:
        if broken and message.number == 700:
            raise ValueError("broken")
        seen.append(message.number)

    async with app:
        await app.publish_many([Happened(number=number) for number in range(1000)])
        await eventually(lambda: len(seen) == 1000, "all messages are handled")
        seen.clear()
        assert (await app.replay_stream(name)).delivered == 1000
        assert seen == list(range(1000))
        broken = True
        with pytest.raises(ReplayStopped) as stopped:
            await app.replay_stream(name)
        assert stopped.value.offset == 700
        assert app.subscriptions[f"{name}.project"].error is None


async def test_an_empty_stream_is_replayed_at_once(
    make_app: MakeApp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.sdk.consume.streams.replay.EMPTY_SECONDS", 0.0)
    app = make_app()

    @app.handle(bytes, stream=name)
    async def take(body: bytes) -> None:
        pass

    async with app:
        assert await app.replay_stream(name) == ReplayReport(0, None, None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offset": "newest"}, "'newest' is no position"),
        ({"offset": -1}, "-1 is no position"),
        ({"offset": datetime(2026, 1, 1)}, "has no time zone"),
        ({"on_error": "ignore"}, "on_error"),
        ({"store_every": 10}, "need resume=True"),
        ({"resume": True, "store_every": 0}, "store_every must be at least 1"),
        ({"match_unfiltered": True}, "match_unfiltered needs filter"),
        ({"queue": "orders"}, "not both"),
        ({"ofset": "first"}, "ofset"),
        ({"stream": Queue("orders")}, "type='stream'"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], text: str) -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        app.handle(Counted, **{"stream": "orders", **options})


def test_a_command_and_options_without_a_stream_are_errors() -> None:
    class Pay(Command, queue="pay"):
        pass

    app = App("memory://")
    with pytest.raises(ConfigError, match="only an Event or foreign content"):
        app.handle(Pay, stream="orders")
    with pytest.raises(ConfigError, match="offset is an option of streams"):
        app.handle(Counted, queue="orders", offset="first")  # type: ignore[call-overload]


async def test_a_handler_that_cancels_its_own_task_fails_once(make_app: MakeApp, name: str) -> None:
    Happened = counted(name)
    app = make_app()
    seen: list[int] = []

    @app.handle(Happened, stream=name, offset="first", resume=True)
    async def project(message: Any) -> None:
        seen.append(message.number)
        if message.number == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with app:
        await publish(app, Happened, range(3))
        dead = await app.get(f"{name}.project.dead", timeout=30)
        assert dead is not None
        assert dead.offset == 1
        await dead.ack()
        await eventually(lambda: len(seen) == 3, "the reader goes on")
    async with app:
        await publish(app, Happened, range(3, 4))
        await eventually(lambda: 3 in seen, "the next start resumes behind the message")
    assert seen == [0, 1, 2, 3]


async def test_a_reader_that_is_cancelled_as_it_gets_the_lease_gives_way(
    make_app: MakeApp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Happened, apps, seen = two_processes(make_app, name)
    monkeypatch.setattr("warren.sdk.consume.streams.stream_subscription.CHECK_SECONDS", 0.0)
    asked, go_on = asyncio.Event(), asyncio.Event()
    checked: list[ReaderLease] = []
    is_taken = ReaderLease.is_taken

    async def slow(lease: ReaderLease) -> bool:
        """Answer the first question only when the lease is granted and the reader cancelled."""
        checked.append(lease)
        if len(checked) == 1:
            asked.set()
            await go_on.wait()
            return False
        return await is_taken(lease)

    monkeypatch.setattr(ReaderLease, "is_taken", slow)
    starting = asyncio.create_task(apps[0].start())
    await asked.wait()
    await eventually(lambda: f"{name}.one" in apps[0].subscriptions, "the reader exists")
    await eventually(lambda: checked[0]._granted, "the lease is granted")
    await apps[0].subscriptions[f"{name}.one"].cancel()
    go_on.set()
    await starting
    async with apps[1]:
        await publish(apps[1], Happened, range(1))
        await eventually(lambda: seen == [1], "the other process reads")
    await apps[0].stop()


async def test_a_filter_selects_messages_within_a_chunk(make_app: MakeApp, name: str) -> None:
    class Sold(Event, exchange=f"{name}.events", key="sold", filter_by="region"):
        number: int
        region: str

    app = make_app()
    seen: list[int] = []

    @app.handle(Sold, stream=name, offset="first", resume=True, filter="eu")
    async def eu(message: Sold) -> None:
        seen.append(message.number)

    async with app:
        await app.publish_many([Sold(number=n, region="eu" if n % 7 == 0 else f"r{n}") for n in range(300)])
        await eventually(lambda: len(seen) >= 43, "all messages with the value are handled")
        await app.publish(Sold(number=300, region="eu"))
        await eventually(lambda: 300 in seen, "the last message is handled")
    assert seen == [n for n in range(300) if n % 7 == 0] + [300]
