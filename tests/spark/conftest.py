"""Fixtures of the pipeline tests: one Spark session, and queues with messages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pika
import pytest
from pyspark.sql import SparkSession

from tests.support.pika_connection import pika_connection
from warren.pipeline import register
from warren.pipeline.spark_session import spark_session

# pyspark 4.3 and py4j leave a socket a finished thread used, and the Java process, to the garbage collector.
PYSPARK = (
    r"ignore:unclosed <socket:ResourceWarning",
    r"ignore:subprocess \d+ is still running:ResourceWarning",
    r"ignore:PySpark does not yet fully support pandas:FutureWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in PYSPARK:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session("tests", "local[2]", tmp_path_factory.mktemp("spark") / "spark.log") as session:
        # For a few rows, generating code takes longer than interpreting. Commands, examples and the cluster run in
        # processes of their own, with the defaults.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        register(session)
        yield session


@pytest.fixture(autouse=True)
def patient_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an App that stops take as long as a busy machine needs to write its captured events."""
    monkeypatch.setattr("warren.sdk.app.runtime.FLUSH_SECONDS", 60.0)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Exchange 100 rows at a time with Python workers instead of 10,000."""
    rows_at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(rows_at_once)
    assert before is not None
    spark.conf.set(rows_at_once, 100)
    yield
    spark.conf.set(rows_at_once, before)


@pytest.fixture
def hurried_retries(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function from whose call on the time between attempts to reach a broker passes at once."""

    def hurry() -> None:
        slept = 0.0

        def sleep(seconds: float) -> None:
            nonlocal slept
            slept += seconds

        hurried = SimpleNamespace(monotonic=lambda: time.monotonic() + slept, sleep=sleep)
        monkeypatch.setattr("warren.pipeline.broker_connection.time", hurried)

    return hurry


@dataclass(frozen=True)
class Message:
    """Message that a test publishes."""

    body: bytes
    properties: pika.BasicProperties | None = None


class Audit:
    """Durable classic queue of the tested broker."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def publish(self, messages: Sequence[Message]) -> None:
        with channel(self.url) as publishing:
            # One commit instead of many confirms: after it the messages survive a kill of the broker.
            publishing.tx_select()
            for message in messages:
                properties = message.properties or pika.BasicProperties(delivery_mode=2)
                publishing.basic_publish("", self.name, message.body, properties)
            publishing.tx_commit()
            # A queue handles requests in order: when it replies, it has all messages.
            publishing.queue_declare(self.name, passive=True)

    def ready(self) -> int:
        with channel(self.url) as asking:
            return int(asking.queue_declare(self.name, passive=True).method.message_count)


@contextmanager
def channel(url: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika_connection(url)
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


@contextmanager
def audit_queue(url: str, arguments: dict[str, object] | None = None) -> Iterator[Audit]:
    """Provide a queue, and delete it at the end if the broker is still running.

    :param arguments: arguments of the queue; by default it is a classic queue
    """
    name = f"pipeline.{uuid.uuid4().hex}"
    with channel(url) as declaring:
        declaring.queue_declare(name, durable=True, arguments=arguments or {"x-queue-type": "classic"})
    try:
        yield Audit(url, name)
    finally:
        with channel(url) as deleting:
            deleting.queue_delete(name)


@pytest.fixture
def audit(amqp_url: str) -> Iterator[Audit]:
    with audit_queue(amqp_url) as queue:
        yield queue
