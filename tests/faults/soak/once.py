"""Exactly-once effects under load: 8 processes handle 200,000 messages, each sent 1 to 5 times, with kills in between.

With Redis (`Once`), no store closes the gap between effect and record: there the effect has the key, a unique
constraint prevents a second one, and these cases are counted. With PostgreSQL (`TransactionalOnce`) there is neither a
gap nor a constraint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
from sqlalchemy import text

from tests.faults.soak.load import left, processor_seconds
from tests.patterns.sql_sessions import Sessions, open_sessions
from tests.support.broker_process import BrokerProcess
from tests.support.postgres import postgres_server
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Worker, Workers, worker_host
from warren.patterns import Once, RedisStore, TransactionalOnce, current_session
from warren.sdk import App, Command
from warren.sdk.protocols import Idempotency as AnyOnce

MESSAGES = 200_000
PROCESSES = 8
KILLS = 40
COPIES = 5
LEASE = timedelta(seconds=10)
"""Longer than this machine stands still, which would let handlers run twice without a kill."""
CONCURRENCY = 20
FORMS = ("redis", "transactional")
IMPORTED = ("warren.patterns", "asyncpg", "redis.asyncio", "aio_pika", "tests.patterns.sql_sessions")


class Charge(Command, queue="charges"):
    order: int


class Warm(Command, queue="warm"):
    """The same work, to measure what it costs."""

    order: int


def soak(share: float, random: Random, folder: Path) -> list[str]:
    figures = []
    with postgres_server("max_connections=400") as postgres, worker_host(*IMPORTED) as host:
        for form in FORMS:
            with redis_server(folder) as redis, BrokerProcess(folder / form) as broker:
                place = {"url": broker.url, "redis": redis, "database": postgres.url, "form": form}
                figures += asyncio.run(_counted(place, broker.data_dir, host, share, random))
        with redis_server(folder) as redis, BrokerProcess(folder / "cost") as broker:
            place = {"url": broker.url, "redis": redis, "database": postgres.url}
            figures += asyncio.run(_cost(place, broker.data_dir, host, share))
    return figures


async def charging(worker: WorkerChannel, url: str, redis: str, database: str, form: str) -> None:
    """Run a worker in which each charge is a row in the database."""
    async with _protected(redis, database, form) as (once, sessions):
        app = App(url)

        @app.handle(Charge, once=once, concurrency=CONCURRENCY)
        async def charge(command: Charge) -> None:
            if form == "transactional":
                await current_session().execute(
                    text("INSERT INTO transactional VALUES (:n)"), {"n": command.order}
                )
                return
            async with sessions.begin() as session:
                done = await session.execute(
                    text("INSERT INTO redis VALUES (:n) ON CONFLICT DO NOTHING"), {"n": command.order}
                )
                if not done.rowcount:  # type: ignore[attr-defined]
                    await session.execute(text("INSERT INTO stopped VALUES (:n)"), {"n": command.order})

        async with app:
            await worker.report_and_wait("ready")


@asynccontextmanager
async def _protected(redis: str, database: str, form: str) -> AsyncIterator[tuple[AnyOnce | None, Sessions]]:
    async with open_sessions(database) as sessions:

        def key(command: Any) -> str:
            return str(command.order)

        if form == "transactional":
            yield TransactionalOnce(sessions, key=key), sessions
        elif form == "redis":
            yield Once(RedisStore(redis), key=key, lease=LEASE), sessions
        else:
            yield None, sessions


async def _counted(place: dict[str, str], data: Path, host: Path, share: float, random: Random) -> list[str]:
    form = place["form"]
    count, kills = round(MESSAGES * share), max(2, round(KILLS * share))
    database = await asyncpg.connect(place["database"])
    unique = "PRIMARY KEY" if form == "redis" else ""
    await database.execute(
        f"CREATE TABLE {form} (n int {unique}); CREATE TABLE IF NOT EXISTS stopped (n int)"
    )
    sent = [n for n in range(count) for _ in range(random.randint(1, COPIES))]
    _shuffle_near(sent, random)
    started = time.monotonic()
    async with Workers(host) as workers:
        alive = [await workers.start(charging, **place) for _ in range(PROCESSES)]
        await workers.wait_for("ready", PROCESSES)
        killing = asyncio.create_task(_kill(alive, workers, place, data, random, kills, len(sent)))
        async with App(place["url"]) as app:
            for at in range(0, len(sent), 5000):
                await app.publish_many(Charge(order=n) for n in sent[at : at + 5000])
        await killing
        await left(data, "charges", at_most=0, seconds=3600)
    elapsed = time.monotonic() - started
    rows, different = await database.fetchrow(f"SELECT count(*), count(DISTINCT n) FROM {form}")
    stopped = await database.fetchval("SELECT count(*) FROM stopped")
    await database.close()
    assert (rows, different) == (count, count), (
        f"{form}: {count} messages, {rows} effects of {different} messages"
    )
    assert stopped <= kills * CONCURRENCY, f"{form}: {stopped} handlers ran again after {kills} kills"
    again = f", {stopped} second runs in the gap stopped by the constraint" if form == "redis" else ""
    return [
        f"{form}: {count:,} messages in {len(sent):,} copies, {PROCESSES} processes, {kills} kills: {rows:,} effects, each "
        f"once{again}; {elapsed:.0f} s, {len(sent) / elapsed:,.0f} deliveries a second"
    ]


async def _kill(
    alive: list[Worker],
    workers: Workers,
    place: dict[str, str],
    data: Path,
    random: Random,
    kills: int,
    copies: int,
) -> None:
    """Kill a worker and start another one repeatedly, evenly over the work."""
    for number in range(kills):
        rest = round(copies * (1 - (number + 1) / (kills + 1)))
        await left(data, "charges", at_most=rest, seconds=3600)
        victim = random.randrange(len(alive))
        alive[victim].kill()
        alive[victim] = await workers.start(charging, **place)


def _shuffle_near(numbers: list[int], random: Random) -> None:
    """Shuffle so that copies of a message follow each other at once, a little later, or much later."""
    order = [(n + random.choice((0.0, 50.0, 5000.0)) * random.random(), n) for n in numbers]
    order.sort()
    numbers[:] = [n for _, n in order]


async def _cost(place: dict[str, str], data: Path, host: Path, share: float) -> list[str]:
    """Measure the processor time per message of an empty handler in one worker, without protection and with each kind."""
    count = max(1000, round(20_000 * share))
    figures: dict[tuple[str, str], float] = {}
    async with Workers(host) as workers, App(place["url"]) as app:
        for form in ("none", "redis", "transactional"):
            for copy in ("new", "duplicate"):
                worker = await workers.start(idle, **place, form=form)
                await workers.wait_for("warm", len(figures) + 1)
                before = processor_seconds(worker.pid)
                await app.publish_many(Warm(order=n) for n in range(count))
                await left(data, "warm", at_most=0, seconds=600)
                worker.resume()
                await workers.wait_for("done", len(figures) + 1, seconds=60)
                figures[form, copy] = (processor_seconds(worker.pid) - before) / count * 1e6
                worker.kill()
    plain = figures["none", "new"]
    return [
        f"cost of {form} in the worker's processor time, beyond the {plain:.0f} µs of a handled message: "
        f"{figures[form, 'new'] - plain:.0f} µs a new message, {figures[form, 'duplicate'] - plain:.0f} µs a duplicate"
        for form in FORMS
    ]


async def idle(worker: WorkerChannel, url: str, redis: str, database: str, form: str) -> None:
    async with _protected(redis, database, form) as (once, _):
        app = App(url)

        @app.handle(Warm, once=once, concurrency=100)
        async def nothing(command: Warm) -> None:
            pass

        async with app:
            await worker.report_and_wait("warm")
        await worker.report_and_wait("done")
