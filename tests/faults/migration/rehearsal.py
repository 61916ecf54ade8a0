"""Rehearsal of `warren migrate`: a system that runs, three kills, and the verdict about what has arrived."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.faults.migration.clients import Arrivals, Client, Consumer, Link, Publisher
from tests.support.broker_process import PATIENT, BrokerProcess, warren
from tests.support.polling import wait_until
from tests.support.processes import Child, free_port
from tests.support.rabbitmq import rabbitmq_server
from warren.wire import field_tables

START_SECONDS = 300.0
"""Seconds until a RabbitMQ must have started."""
WINDOW = 200
"""Most messages of a queue that are published and not acknowledged: the default of `--window`."""
KILLS = ("tool", "source", "target")


class Broker(Protocol):
    """A broker that can be killed and started again."""

    url: str

    @property
    def management_url(self) -> str: ...

    def kill(self) -> None: ...

    def start(self, timeout: float = 90.0) -> None: ...


@dataclass(frozen=True)
class Load:
    """Size of a rehearsal."""

    queues: int
    """Queues that are published to directly."""
    delay_queues: int
    """Queues that get their messages from a queue with a TTL each."""
    messages: int
    """Messages of each queue."""
    delay_ms: int
    seed: int
    patience: float = 120.0
    """Seconds until a step must be done."""


@dataclass
class Verdict:
    """Result of a rehearsal."""

    certificate: dict[str, Any]
    arrived: int = 0
    recognised: int = 0
    redelivered: int = 0
    expired: int = 0
    kills: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Duration of the migration itself."""
    paused: float = 0.0
    """Seconds between the end of the publishers on the source and the certificate."""

    def lines(self) -> list[str]:
        """Return the verdict as lines for a person."""
        return [
            f"messages that arrived: {self.arrived}",
            f"copies recognised by their headers: {self.recognised}",
            f"redeliveries of the brokers: {self.redelivered}",
            f"copies that expired at the source during a kill: {self.expired}",
            f"kills: {', '.join(self.kills)}",
            f"duration of the migration: {self.seconds:.0f} s",
            f"pause of the publishers: {self.paused:.1f} s",
            f"certificate holds: {self.certificate.get('holds')}",
            *(
                self.faults[:20]
                or ["no message lost, none out of order, none too early, no unexplained copy"]
            ),
        ]


class Rehearsal:
    """A migration from one broker to another under load.

    :param folder: empty folder for the state of the tool.
    :param note: prints a line about the progress.
    """

    def __init__(
        self, source: Broker, target: Broker, load: Load, folder: Path, note: Callable[[str], None]
    ) -> None:
        self._source = source
        self._target = target
        self._load = load
        self._folder = folder
        self._note = note
        self._random = random.Random(load.seed)
        self._tool: Child | None = None
        names = [f"work.{index}" for index in range(load.queues)]
        waits = [f"wait.{index}" for index in range(load.delay_queues)]
        self._published = dict.fromkeys([*names, *waits], load.messages)
        self._arrivals = {name: Arrivals(name, load.messages) for name in names}
        for index in range(load.delay_queues):
            name = f"due.{index}"
            self._arrivals[name] = Arrivals(name, load.messages, load.delay_ms)

    def run(self) -> Verdict:
        """Run it, and return the verdict."""
        load = self._load
        urls = (self._source.url, self._target.url)
        self._declare()
        backlog, reserve = load.messages * 7 // 10, load.messages // 20
        halves: list[dict[str, int]] = [{}, {}]
        for index, (queue, count) in enumerate(self._published.items()):
            halves[index % 2][queue] = count
        publishers = [Publisher(urls, half, backlog, reserve, 0.02) for half in halves if half]
        total = sum(self._published.values())
        consumer = Consumer(urls, self._arrivals, total // 20)
        clients: list[Client] = [*publishers, consumer]
        for publisher in publishers:
            publisher.start()
        for publisher in publishers:
            self._until(publisher.has_backlog.is_set, "the backlog is published", clients)
        self._note(f"backlog of {sum(sum(each.next.values()) for each in publishers)} messages published")
        for publisher in publishers:
            publisher.starts_traffic.set()
        consumer.start()
        began = time.monotonic()
        self._start_tool()
        try:
            verdict = self._move(publishers, consumer, total, began)
            consumer.ends.set()
            consumer.join(self._load.patience)
        finally:
            for client in clients:
                client.ends.set()
            if self._tool is not None:
                self._tool.kill()
        self._judge(verdict, publishers)
        return verdict

    def _move(self, publishers: Sequence[Publisher], consumer: Consumer, total: int, began: float) -> Verdict:
        clients: list[Client] = [*publishers, consumer]
        self._until(consumer.has_left.is_set, "the consumer has left the source", clients)
        self._note("consumers have left the source")
        consumer.enters.set()
        verdict = Verdict({})
        order = self._random.sample(KILLS, len(KILLS))
        for index, kill in enumerate(order, 1):
            share = total * (15 * index + self._random.randrange(10)) // 100
            self._until(lambda share=share: self._confirmed() >= share, f"{share} are moved", clients)  # type: ignore[misc]
            self._kill(kill)
            verdict.kills.append(f"{kill} after {share} messages")
            self._note(verdict.kills[-1])
        for publisher in publishers:
            publisher.leaves.set()
        for publisher in publishers:
            self._until(publisher.has_left.is_set, "the publishers have left the source", clients)
        stopped = time.monotonic()
        self._note("publishers have left the source")
        tool = self._tool
        assert tool is not None
        self._until(lambda: not tool.running, "the migration ends", clients)
        verdict.seconds, verdict.paused = time.monotonic() - began, time.monotonic() - stopped
        self._tool = None
        status = tool.wait()
        if status:
            verdict.faults.append(f"warren migrate ends with {status}: {tool.errors[-2000:]}")
        certificate = self._folder / "certificate.json"
        if certificate.exists():
            verdict.certificate = json.loads(certificate.read_text())
        self._note(f"warren migrate has ended with status {status}")
        for publisher in publishers:
            publisher.enters.set()
        self._until(
            lambda: all(each.is_complete for each in self._arrivals.values()),
            "all messages have arrived",
            clients,
            verdict,
        )
        return verdict

    def _until(
        self, holds: Callable[[], bool], what: str, clients: Sequence[Client], verdict: Verdict | None = None
    ) -> None:
        """Wait for a condition, as long as no client has failed. With a verdict, its absence is a fault there."""

        def is_over() -> bool:
            failed = next((each.error for each in clients if each.error is not None), None)
            assert failed is None, f"a client failed: {failed!r}"
            tool = self._tool
            assert tool is None or tool.running or tool.wait() == 0, f"the tool failed: {tool.errors}"
            return holds()

        try:
            wait_until(is_over, what, self._load.patience)
        except AssertionError as error:
            if verdict is None:
                tool = "" if self._tool is None else self._tool.errors[-2000:]
                raise AssertionError(f"{error}\n{tool}") from None
            verdict.faults.append(str(error))

    def _declare(self) -> None:
        link = Link(self._source.url, confirms=False)
        for name in self._published:
            arguments: dict[str, field_tables.Value] = {}
            if name.startswith("wait."):
                arguments = {
                    "x-message-ttl": self._load.delay_ms,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": name.replace("wait.", "due."),
                }
            self._declare_queue(link, name, arguments)
        for name in self._arrivals:
            if name not in self._published:
                self._declare_queue(link, name, {})
        link.close()

    @staticmethod
    def _declare_queue(link: Link, name: str, arguments: dict[str, field_tables.Value]) -> None:
        flags = (False, True, False, False, False)
        link.call("queue.declare", 0, name.encode(), *flags, field_tables.encode(arguments))

    def _start_tool(self) -> None:
        self._tool = Child(
            [
                *warren("migrate", "--state", self._folder, "--interval", "200ms"),
                *("--source", self._source.url, "--source-management-url", self._source.management_url),
                *("--target", self._target.url, "--target-management-url", self._target.management_url),
            ]
        )

    def _confirmed(self) -> int:
        """Return the number of messages that the tool has recorded as confirmed."""
        return sum(file.stat().st_size // 16 for file in self._folder.glob("*.target"))

    def _kill(self, kill: str) -> None:
        if kill == "tool":
            assert self._tool is not None
            self._tool.kill()
            self._start_tool()
            return
        broker = self._source if kill == "source" else self._target
        broker.kill()
        broker.start(START_SECONDS)

    def _judge(self, verdict: Verdict, publishers: Sequence[Publisher]) -> None:
        republished: dict[str, set[int]] = {}
        for publisher in publishers:
            for queue, numbers in publisher.republished.items():
                republished[queue.replace("wait.", "due.")] = numbers
        for name, arrivals in self._arrivals.items():
            verdict.arrived += arrivals.arrived
            verdict.recognised += arrivals.recognised
            verdict.redelivered += arrivals.redelivered
            verdict.expired += arrivals.expired
            if arrivals.expired > WINDOW * len(verdict.kills):
                verdict.faults.append(f"{name}: {arrivals.expired} messages were moved from two queues")
            verdict.faults += arrivals.faults
            if not arrivals.is_complete:
                verdict.faults.append(f"{name}: {arrivals.count - arrivals.arrived} messages are lost")
            verdict.faults += [
                f"{name}: {number} came {copies + 1} times"
                for number, copies in arrivals.unexplained.items()
                if number not in republished[name]
            ]
        if not verdict.certificate.get("holds"):
            verdict.faults.append("the certificate does not hold")


def commit() -> str:
    """Return the commit of this checkout."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class WarrenBroker(BrokerProcess):
    """A `warren broker` with the HTTP API."""

    def __init__(self, folder: Path) -> None:
        self._management_port = free_port()
        super().__init__(folder, *PATIENT, "--management-port", str(self._management_port))

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self._management_port}"


@contextmanager
def two_brokers(source: str, target: str, folder: Path) -> Iterator[tuple[Broker, Broker]]:
    """Run two brokers, each of which is `warren` or a version of RabbitMQ."""
    with ExitStack() as stack:
        yield _broker(stack, source, folder / "source"), _broker(stack, target, folder / "target")


def _broker(stack: ExitStack, kind: str, folder: Path) -> Broker:
    if kind == "warren":
        broker = WarrenBroker(folder)
        stack.enter_context(broker)
        return broker
    plugins = ["rabbitmq_management"]
    return stack.enter_context(rabbitmq_server(START_SECONDS, plugins=plugins, version=kind))
