"""The bridge beside real Celery programs: a worker takes Warren's tasks, and a client calls Warren's."""

from __future__ import annotations

import asyncio
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import celery
import celery.exceptions
import kombu.exceptions
import pytest

from tests.patterns.celery_program import OutOfStock, celery_client
from tests.patterns.conftest import NewApp
from tests.patterns.topology_cleanup import delete_topology
from tests.support.processes import Child
from warren.patterns import Delay
from warren.patterns.celery import CeleryBridge, CeleryRequest, CeleryState, CeleryTaskError, celery_queue
from warren.sdk import App, CallError, CallTimeout, Retry, RetryLater

WAIT = 60.0
"""Seconds that a program waits for another one; none of them takes as long."""
CHECKOUT = Path(__file__).parents[2]
WORKER_OPTIONS = ("--pool", "solo", "--without-mingle", "--without-gossip", "--loglevel", "warning")
DELAY = "celery-programs.delay"
"""Name of the exchanges and queues in which tasks wait, shared by the tests: there are sixty of them."""


@pytest.fixture(scope="module")
def worker_queue() -> str:
    return f"t{uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def celery_worker(amqp_url: str, worker_queue: str, starts_processes: None) -> Iterator[None]:
    """Run a Celery worker for the queue `worker_queue`."""
    words = [sys.executable, "-m", "celery", "-A", "tests.patterns.celery_program", "worker", *WORKER_OPTIONS]
    with Child(words, env={"AMQP_URL": amqp_url, "CELERY_QUEUE": worker_queue}, cwd=CHECKOUT) as child:
        # What is in its queue at its start, it may leave there for ten seconds.
        child.wait_for_line("ready")
        yield
        # Its graceful stop waits for up to ten seconds.
        child.kill()


@pytest.fixture
def sender(new_app: NewApp, worker_queue: str, celery_worker: None) -> CeleryBridge:
    """Return a bridge of an App that is not started yet, whose tasks the worker runs."""
    return CeleryBridge(queue=worker_queue)


async def test_a_celery_worker_runs_what_warren_sends(new_app: NewApp, sender: CeleryBridge) -> None:
    app = new_app()
    app.include(sender)

    @sender.remote("shop.charge")
    def charge(order_id: str, cents: int, *, currency: str = "EUR") -> str:
        raise NotImplementedError

    @sender.remote("shop.total")
    def total(prices: list[Decimal], when: datetime) -> dict[str, Any]:
        raise NotImplementedError

    @sender.remote("shop.charge", ignore_result=True)
    def charge_blindly(order_id: str, cents: int) -> str:
        raise NotImplementedError

    async with app:
        results = [await charge.delay(str(number), 990, currency="USD") for number in range(20)]
        assert [await each.get(WAIT) for each in results] == [f"{number}: 990 USD" for number in range(20)]
        assert results[0].state is CeleryState.SUCCESS
        when = datetime(2026, 11, 23, 12, tzinfo=UTC)
        summed = await total.delay([Decimal("9.90"), Decimal("0.10")], when)
        assert await summed.get(WAIT) == {"sum": Decimal("10.00"), "when": when}
        with pytest.raises(CallError, match="it has no result"):
            await (await charge_blindly.delay("1", 5)).get()
        with pytest.raises(TypeError, match="missing a required argument"):
            await charge.delay("1")  # type: ignore[call-arg]
    assert (sender.statistics.sent, sender.statistics.results) == (22, 21)


async def test_a_failure_and_a_retry_of_a_celery_worker(new_app: NewApp, sender: CeleryBridge) -> None:
    app = new_app()
    app.include(sender)

    @sender.remote("shop.reserve")
    def reserve(sku: str) -> None: ...

    @sender.remote("shop.flaky")
    def flaky() -> int:
        raise NotImplementedError

    @sender.remote("shop.flaky")
    def mistyped() -> list[str]:
        raise NotImplementedError

    async with app:
        with pytest.raises(CeleryTaskError, match="failed: OutOfStock: no lamp left, 3") as caught:
            await (await reserve.delay("lamp")).get(WAIT)
        failure = caught.value
        assert (failure.exc_type, failure.exc_message) == ("OutOfStock", ("no lamp left", 3))
        assert failure.exc_module == "tests.patterns.celery_program"
        assert failure.traceback is not None
        assert "raise OutOfStock" in failure.traceback
        assert await (await flaky.delay()).get(WAIT) == 2
        with pytest.raises(CallError, match="is not of its type"):
            await (await mistyped.with_options(retries=9).delay()).get(WAIT)


async def test_times_and_the_family_of_a_sent_task(new_app: NewApp, sender: CeleryBridge) -> None:
    app = new_app()
    app.include(sender)

    @sender.remote("shop.family")
    def family() -> list[str]:
        raise NotImplementedError

    async with app:
        now = datetime.now(UTC)
        expired = await family.with_options(expires=now - timedelta(hours=1)).delay()
        with pytest.raises(CeleryTaskError, match="was revoked: TaskRevokedError: expired"):
            await expired.get(WAIT)
        later = family.with_options(countdown="1s", root_id="root", parent_id="parent", task_id=str(uuid4()))
        assert await (await later.delay()).get(WAIT) == ["root", "parent"]
        assert datetime.now(UTC) >= now + timedelta(seconds=1)
        with pytest.raises(CallTimeout, match="no result of task"):
            await (await family.with_options(countdown="1h", expires="2s").delay()).get(0.01)


async def run_client(amqp_url: str, queue: str, use: Callable[[Any], Any]) -> Any:
    """Run blocking code with a Celery client in a thread, to which its results belong."""

    def run() -> Any:
        with celery_client(amqp_url, queue) as client:
            return use(client)

    return await asyncio.to_thread(run)


@pytest.fixture
def receiver(new_app: NewApp, name: str) -> tuple[App, CeleryBridge]:
    """Return an App that is not started yet, and a bridge with a queue of its own."""
    app, delay = new_app(), Delay(DELAY)
    bridge = CeleryBridge(queue=name, delay=delay)
    app.include(delay)
    app.include(bridge)
    return app, bridge


async def test_a_celery_client_gets_results_and_failures(
    receiver: tuple[App, CeleryBridge], amqp_url: str, name: str
) -> None:
    app, bridge = receiver

    @bridge.task("shop.charge", track_started=True)
    async def charge(order_id: str, cents: int, *, currency: str = "EUR") -> str:
        return f"{order_id}: {cents} {currency}"

    @bridge.task("shop.total")
    def total(prices: list[Decimal], when: datetime) -> dict[str, object]:
        return {"sum": sum(prices), "when": when}

    @bridge.task("shop.reserve")
    async def reserve(sku: str) -> None:
        raise OutOfStock(f"no {sku} left", 3)

    when = datetime(2026, 11, 23, 12, tzinfo=UTC)

    def use(client: Any) -> None:
        results = [
            client.send_task("shop.charge", (str(number), 990), {"currency": "USD"}) for number in range(20)
        ]
        assert [each.get(WAIT) for each in results] == [f"{number}: 990 USD" for number in range(20)]
        summed = client.send_task("shop.total", ([Decimal("9.90"), Decimal("0.10")], when))
        assert summed.get(WAIT) == {"sum": Decimal("10.00"), "when": when}
        failed = client.send_task("shop.reserve", ("lamp",))
        with pytest.raises(OutOfStock) as caught:
            failed.get(WAIT)
        assert caught.value.args == ("no lamp left", 3)
        assert "raise OutOfStock" in failed.traceback
        with pytest.raises(TypeError, match="missing a required argument: 'cents'"):
            client.send_task("shop.charge", ("1",)).get(WAIT)
        with pytest.raises(ValueError, match="cents"):
            client.send_task("shop.charge", ("1", "many")).get(WAIT)
        with pytest.raises(celery.exceptions.NotRegistered):
            client.send_task("shop.unknown").get(WAIT)
        with pytest.raises(kombu.exceptions.ContentDisallowed, match="set task_serializer = 'json'"):
            client.send_task("shop.charge", ("1", 2), serializer="pickle").get(WAIT)
        with pytest.raises(celery.exceptions.TaskRevokedError, match="expired"):
            client.send_task("shop.charge", ("1", 2), expires=datetime.now(UTC) - timedelta(hours=1)).get(
                WAIT
            )

    async with app:
        await run_client(amqp_url, name, use)
        # A failure is dead-lettered too.
        reasons = []
        for _ in range(5):
            dead = await app.get(f"{name}.dead", timeout=WAIT)
            assert dead is not None
            await dead.ack()
            reasons.append(dead.headers["warren-dead-error"])
    assert "OutOfStock: ('no lamp left', 3)" in reasons
    assert any("only JSON is read" in reason for reason in reasons)
    found = bridge.statistics
    assert (found.succeeded, found.failed, found.refused, found.expired) == (21, 1, 4, 1)


async def test_retries_and_an_eta_wait_on_the_broker(
    receiver: tuple[App, CeleryBridge], amqp_url: str, name: str
) -> None:
    app, bridge = receiver
    seen: list[int] = []

    @bridge.task("shop.flaky", retry=Retry(1).then("1s", "1s"))
    async def flaky(request: CeleryRequest) -> int:
        seen.append(request.retries)
        if request.retries < 2:
            raise ConnectionError("not yet")
        return request.retries

    @bridge.task("shop.later")
    async def later(request: CeleryRequest) -> float:
        if not request.retries:
            raise RetryLater("1s")
        return datetime.now(UTC).timestamp()

    def use(client: Any) -> None:
        asked = datetime.now(UTC).timestamp()
        slow = client.send_task("shop.later", countdown=1)
        flaky = client.send_task("shop.flaky")
        assert flaky.get(WAIT) == 2
        assert slow.get(WAIT) - asked >= 2

    async with app:
        await run_client(amqp_url, name, use)
    assert seen == [0, 1, 2]
    assert (bridge.statistics.retried, bridge.statistics.postponed) == (3, 1)


async def test_a_chain_and_callbacks_pass_from_celery_to_warren_and_back(
    new_app: NewApp, amqp_url: str, name: str, worker_queue: str, celery_worker: None
) -> None:
    app, delay = new_app(), Delay(DELAY)
    bridge = CeleryBridge(queue=name, delay=delay, routes={"shop.bump": worker_queue})
    app.include(delay)
    app.include(bridge)
    noted: asyncio.Queue[tuple[object, str | None]] = asyncio.Queue()

    @bridge.task("shop.double")
    async def double(number: int) -> int:
        return 2 * number

    @bridge.task("shop.break")
    async def break_down(number: int) -> int:
        raise OutOfStock(number)

    @bridge.task("shop.note")
    async def note(what: object, request: CeleryRequest) -> None:
        await noted.put((what, request.parent_id))

    def use(client: Any) -> tuple[str, str]:
        def task(which: str, *args: object, queue: str = name) -> Any:
            return client.signature(which, args=args, queue=queue)

        bump = task("shop.bump", queue=worker_queue)
        # Celery, Warren (which finds the next queue in its routes), Celery, Warren.
        chained = celery.chain(
            task("shop.bump", 1, queue=worker_queue),
            task("shop.double"),
            client.signature("shop.bump"),
            task("shop.double"),
        ).apply_async()
        assert chained.get(WAIT) == 10
        grouped = celery.group(task("shop.double", number) for number in range(5)).apply_async()
        assert grouped.get(timeout=WAIT) == [0, 2, 4, 6, 8]
        broken = celery.chain(task("shop.break", 1), task("shop.double"), bump).apply_async()
        with pytest.raises(OutOfStock):
            broken.get(WAIT)
        linked = task("shop.double", 3).apply_async(link=[task("shop.note"), task("shop.note", "second")][:1])
        assert linked.get(WAIT) == 6
        failed = task("shop.break", 1).apply_async(link_error=task("shop.note"))
        with pytest.raises(OutOfStock):
            failed.get(WAIT)
        return linked.id, failed.id

    async with app:
        linked, failed = await run_client(amqp_url, name, use)
        async with asyncio.timeout(WAIT):
            assert sorted([await noted.get(), await noted.get()], key=str) == sorted(
                [(6, linked), (failed, failed)], key=str
            )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_celery_and_warren_consume_one_queue(
    new_app: NewApp, amqp_url: str, name: str, kind: Literal["classic", "quorum"]
) -> None:
    """Both declare the queue with equal arguments, in either order."""
    app, delay = new_app(), Delay(DELAY)
    bridge = CeleryBridge(queue=celery_queue(name, type=kind), delay=delay)
    app.include(delay)
    app.include(bridge)

    @bridge.task("shop.charge")
    async def charge(order_id: str) -> str:
        return order_id

    def declare(client: Any) -> None:
        client.conf.task_default_queue_type = kind
        with client.connection_for_write() as connection:
            client.amqp.queues[name](connection.default_channel).declare()

    def use(client: Any) -> None:
        declare(client)
        assert client.send_task("shop.charge", ("42",)).get(WAIT) == "42"

    await run_client(amqp_url, name, declare)
    async with app:
        await run_client(amqp_url, name, use)


async def test_the_worker_of_the_page_moves(
    amqp_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts_processes: None
) -> None:
    """The Celery program of the documentation calls Warren's `shop.charge`, which sends `shop.mail` to a Celery worker."""
    page = (CHECKOUT / "docs" / "coming-from" / "celery-bridge.md").read_text()
    [program] = re.findall(r'```python title="celery_shop.py"\n(.*?)```', page, re.DOTALL)
    (tmp_path / "celery_shop.py").write_text(program)
    monkeypatch.setenv("AMQP_URL", amqp_url)
    app: App = runpy.run_path(str(CHECKOUT / "examples" / "interop_celery.py"))["app"]
    words = [sys.executable, "-m", "celery", "-A", "celery_shop", "worker", "-Q", "mail", *WORKER_OPTIONS]
    try:
        async with app:
            with (
                Child(words, env={"AMQP_URL": amqp_url}, cwd=tmp_path) as worker,
                Child([sys.executable, "celery_shop.py"], env={"AMQP_URL": amqp_url}, cwd=tmp_path) as client,
            ):
                await asyncio.to_thread(client.wait_for_line, "charged 990")
                assert "charged 990 by Celery" not in client.lines
                async with asyncio.timeout(WAIT):
                    while "mail for order 42: charged 990" not in worker.errors:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                await asyncio.to_thread(client.wait)
                worker.kill()
    finally:
        await delete_topology(amqp_url, [app], "charges")
        await delete_topology(amqp_url, [app], "mail")
