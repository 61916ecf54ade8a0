"""A Celery application for the tests of the bridge: `celery -A tests.patterns.celery_program worker`, and its client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

import kombu.pools
from celery import Celery
from celery.signals import worker_ready


class OutOfStock(Exception):
    """Failure that both programs know."""


def make_celery(url: str, queue: str) -> Celery:
    """Return an application with `rpc://` results and the default queue `queue`."""
    app = Celery("shop", broker=url, backend="rpc://", set_as_current=False)
    app.conf.update(
        task_default_queue=queue,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        worker_enable_remote_control=False,
        worker_prefetch_multiplier=1,
        task_acks_late=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    return app


@contextmanager
def celery_client(url: str, queue: str) -> Iterator[Celery]:
    """Make an application for a client, and close its connections at the end."""
    app = make_celery(url, queue)
    try:
        yield app
    finally:
        consumer = app.backend.result_consumer
        if consumer._consumer is not None:
            consumer.stop()
        app.close()
        # Its pools belong to the process, by URL.
        kombu.pools.reset()


if "CELERY_QUEUE" in os.environ:

    @worker_ready.connect  # type: ignore[untyped-decorator]
    def announce(**_: object) -> None:
        print("ready", flush=True)

    app = make_celery(os.environ["AMQP_URL"], os.environ["CELERY_QUEUE"])

    @app.task(name="shop.charge")  # type: ignore[untyped-decorator]
    def charge(order_id: str, cents: int, *, currency: str = "EUR") -> str:
        return f"{order_id}: {cents} {currency}"

    @app.task(name="shop.total")  # type: ignore[untyped-decorator]
    def total(prices: list[Decimal], when: datetime) -> dict[str, object]:
        assert all(isinstance(price, Decimal) for price in prices)
        assert isinstance(when, datetime)
        return {"sum": sum(prices), "when": when}

    @app.task(name="shop.reserve")  # type: ignore[untyped-decorator]
    def reserve(sku: str) -> None:
        raise OutOfStock(f"no {sku} left", 3)

    @app.task(name="shop.flaky", bind=True)  # type: ignore[untyped-decorator]
    def flaky(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0, max_retries=5)
        return int(self.request.retries)

    @app.task(name="shop.family", bind=True)  # type: ignore[untyped-decorator]
    def family(self: Any) -> list[str]:
        return [self.request.root_id, self.request.parent_id]

    @app.task(name="shop.bump")  # type: ignore[untyped-decorator]
    def bump(number: int) -> int:
        return number + 1
