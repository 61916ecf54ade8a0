"""Patterns, routers and probes that no App includes: a use raises an error, or the start of an App tells it."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

import warren.patterns
from warren.patterns import (
    CatchAll,
    ClaimCheck,
    Deadline,
    Delay,
    DelayLadder,
    Encryption,
    FolderBlobStore,
    Immediate,
    IntervalSchedule,
    LocalRateLimiter,
    MemoryStore,
    Outbox,
    Partitions,
    RateLimit,
    Resequencer,
    RoutingSlipEnded,
    RoutingSlips,
    Saga,
    Signing,
    Timers,
    TransitionTo,
    WaitQueues,
    WorkQueue,
)
from warren.patterns.celery import CeleryBridge
from warren.sdk import App, Command, ConfigError, Event, HealthProbe, Router
from warren.sdk.extend import IncludedComponent, not_included


class Work(Command, queue="work"):
    pass


class Placed(Event, exchange="orders", key="placed"):
    order: str = "1"


class Ended(RoutingSlipEnded, queue="ended"):
    pass


class Checkout(BaseModel):
    pass


async def nothing(*_: Any) -> None: ...


def outbox(folder: Path) -> Outbox:
    return Outbox(async_sessionmaker())


def saga(folder: Path) -> Saga[Checkout]:
    made = Saga("checkout", Checkout, store=MemoryStore(), key="order")
    made.starts(Placed)(lambda placed: TransitionTo("waiting", Checkout()))
    return made


def resequencer(folder: Path) -> Resequencer:
    made = Resequencer("in order", store=MemoryStore())
    made.handle(Placed)(nothing)
    return made


def routing_slips(folder: Path) -> RoutingSlips:
    made = RoutingSlips(steps=[Work], ends=[])
    made.step(Work)(nothing)
    return made


def partitions(folder: Path) -> Partitions:
    made = Partitions("split", 2, key=lambda placed: placed.order)
    made.handle(Placed)(nothing)
    return made


def celery(folder: Path) -> CeleryBridge:
    made = CeleryBridge()
    made.task("charge")(lambda: None)
    return made


def router(folder: Path) -> Router:
    made = Router(prefix="billing.")
    made.handle(Work)(nothing)
    return made


TOLD: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "Outbox": (outbox, "Outbox", "nothing that is added is published"),
    "Saga": (saga, "Saga checkout", "its messages are not handled"),
    "Resequencer": (resequencer, "Resequencer in order", "its messages are not handled"),
    "RoutingSlips": (routing_slips, "RoutingSlips", "its steps are not executed"),
    "Partitions": (partitions, "Partitions split.2", "its messages are not handled"),
    "CeleryBridge": (celery, "CeleryBridge", "its tasks are not run"),
    "RateLimit": (
        lambda folder: RateLimit(LocalRateLimiter(1, per="1s"), queues=["work"]),
        "RateLimit",
        "its queues are consumed without a limit",
    ),
    "Timers": (
        lambda folder: Timers(
            "billing",
            store=MemoryStore(),
            sends=[Placed],
            schedules=[IntervalSchedule("hourly", timedelta(hours=1), Placed())],
        ),
        "Timers billing",
        "its schedules publish nothing",
    ),
    "Encryption": (
        lambda folder: Encryption({"1": bytes(32)}, current="1"),
        "Encryption",
        "bodies are published as plain text",
    ),
    "Signing": (
        lambda folder: Signing.hmac({"1": bytes(32)}, current="1"),
        "Signing",
        "messages are neither signed nor checked",
    ),
    "CatchAll": (
        lambda folder: CatchAll("orders", alert=nothing),
        "CatchAll orders",
        "its alert is not called",
    ),
    "HealthProbe": (lambda folder: HealthProbe(0), "HealthProbe", "nothing answers GET /live and /ready"),
    "Router": (router, "Router billing.", "its handlers are not called"),
}

REFUSED: dict[str, Callable[[Path], Awaitable[object]]] = {
    "Outbox": lambda folder: outbox(folder).add(AsyncSession(), Work()),
    "Deadline": lambda folder: Deadline(
        "pay", after=timedelta(minutes=1), signal=lambda key: Work(), store=MemoryStore()
    ).start("1"),
    "Delay": lambda folder: Delay().after(Work(), "5s"),
    "Delay at": lambda folder: Delay().at(Work(), datetime.now(UTC)),
    "DelayLadder": lambda folder: DelayLadder("late").publish(Work(), "5s"),
    "Immediate": lambda folder: Immediate("now").publish(b"x"),
    "Partitions": lambda folder: Partitions("split", 2, key=lambda placed: placed.order).publish(Placed()),
    "RoutingSlips": lambda folder: RoutingSlips(steps=[Work], ends=[Ended]).start([Work()], end=Ended),
    "WorkQueue": lambda folder: WorkQueue("jobs").put(b"x"),
    "CeleryBridge": lambda folder: CeleryBridge().remote("charge")(lambda: None).delay(),
}

WITHOUT_EFFECT = {
    "ClaimCheck": "large bodies are sent as they are; `put` and `get` work without an App",
    "WaitQueues": "belongs to `App(delay=)`",
}
"""Components whose absence loses nothing, with the reason."""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        text
        for text in caplog.messages
        if text.startswith("event=component.not_included ") and f"made={__name__}:" in text
    ]


def test_every_component_is_tried() -> None:
    names = {
        name
        for name in warren.patterns.__all__
        if inspect.isclass(found := getattr(warren.patterns, name)) and hasattr(found, "on_start")
    }
    assert names <= TOLD.keys() | REFUSED.keys() | WITHOUT_EFFECT.keys()


@pytest.mark.parametrize("kind", TOLD)
async def test_the_start_of_an_app_tells_what_was_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    make, title, consequence = TOLD[kind]
    forgotten = make(tmp_path)
    assert (title, consequence) in [(each.title, each.consequence) for each in not_included()]
    for _ in range(2):
        async with App("memory://"):
            pass
    # Told once, with the place at which it was made.
    (line,) = lines(caplog)
    assert f"component={title!r}" in line or f"component={title} " in line
    assert consequence in line
    del forgotten


@pytest.mark.parametrize("kind", ["Saga", "Router", "Encryption"])
@pytest.mark.parametrize("decision", ["include", "leave_out", "router"])
async def test_what_is_included_or_left_out_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, decision: str
) -> None:
    part = TOLD[kind][0](tmp_path)
    app = App("memory://")
    if decision == "router":
        around = Router()
        around.include(part)
        app.include(around)
    else:
        getattr(app, decision)(part)
    async with app:
        pass
    assert not lines(caplog)


async def test_a_router_that_is_included_at_run_time_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with App("memory://") as app:
        later = router(tmp_path)
        await app.include_now(later)
        async with App("memory://"):
            pass
    assert not lines(caplog)


def test_a_router_tells_what_is_lost_with_it(tmp_path: Path) -> None:
    inner = Router(prefix="inner.")
    inner.include(TOLD["Encryption"][0](tmp_path))
    outer = Router()
    outer.include(inner)
    outer.publishes(Placed)
    told = {each.title: each.consequence for each in not_included()}
    assert told["Router"] == "Router inner.: Encryption: bodies are published as plain text"
    assert "Router inner." not in told
    declaring = Router(prefix="declaring.")
    declaring.publishes(Placed)
    assert "Router declaring." not in {each.title for each in not_included()}


def test_equal_components_are_told_apart_and_forgotten_with_their_objects(tmp_path: Path) -> None:
    @dataclass
    class Probe(IncludedComponent):
        name: str

        def __post_init__(self) -> None:
            super().__init__()

        @property
        def lost_without_app(self) -> str:
            return "nothing is probed"

    def told() -> int:
        return sum(each.title == "Probe same" for each in not_included())

    probes = [Probe("same"), Probe("same")]
    assert told() == 2
    App("memory://").leave_out(probes[0])  # type: ignore[arg-type]
    assert told() == 1
    probes.clear()
    gc.collect()
    assert told() == 0


async def test_an_outbox_that_is_left_out_adds_messages(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/outbox.sqlite")
    sessions = async_sessionmaker(engine)
    adding = Outbox(sessions)
    App("memory://").leave_out(adding)
    async with sessions.begin() as session:
        await adding.add(session, Work())
    assert adding.statistics.added == 1
    await engine.dispose()


@pytest.mark.parametrize("use", REFUSED)
async def test_a_use_without_an_app_is_refused(tmp_path: Path, use: str) -> None:
    with pytest.raises(ConfigError, match=r"belongs to no App: call app\.include\(\.\.\.\)"):
        await REFUSED[use](tmp_path)


def test_a_claim_check_works_without_an_app(tmp_path: Path) -> None:
    ClaimCheck(FolderBlobStore(tmp_path))
    WaitQueues()
    assert not [each for each in not_included() if each.title in ("ClaimCheck", "WaitQueues")]
