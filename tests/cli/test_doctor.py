"""`warren doctor`: each check finds its defect on Warren and on RabbitMQ, and nothing on what is in order."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.cli.conftest import Command, Module
from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.operator_cli import warren_ctl
from tests.support.rabbitmq import RabbitMQ
from warren.cli import dispatch
from warren.cli.doctor.app_checks import APP_CHECKS
from warren.cli.doctor.finding import CHECKS, SEVERITIES
from warren.cli.doctor.main import CHECK_MODULES
from warren.cli.doctor.snapshot import QueueState, Samples, Snapshot
from warren.patterns import BinaryDelayQueues, wait_queue
from warren.sdk import App, Event, Queue

pytestmark = pytest.mark.processes

PAGE = Path("docs/doctor.md")
PATIENCE = 120.0
LIMITED: dict[str, Any] = {"x_max_length": 100_000}
Ctl = Callable[..., object]


class Broker:
    """A broker that `warren doctor` can examine, with the names of this test module."""

    def __init__(self, url: str, options: list[str], ctl: Ctl, counts_publishes: bool) -> None:
        self.url = url
        self.options = options
        self.ctl = ctl
        self.counts_publishes = counts_publishes
        self.name = f"t{uuid4().hex[:10]}"

    def doctor(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Return the exit status and the JSON output of `warren doctor`."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = dispatch.main(["doctor", "--url", self.url, "--json", *self.options, *words])
        return status, json.loads(output.getvalue())

    def until(self, wanted: set[tuple[str, str]], *words: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Run `warren doctor` until it has found these (code, object); return what it found, by the same pairs.

        RabbitMQ collects its statistics every five seconds.
        """
        found: dict[tuple[str, str], dict[str, Any]] = {}
        deadline = time.monotonic() + 180
        while True:
            _, printed = self.doctor(*words)
            for each in printed["findings"]:
                if self.name in each["object"] + each["evidence"]:
                    found[each["code"], each["object"].replace(self.name, "NAME")] = each
            if wanted <= found.keys():
                return found
            assert time.monotonic() < deadline, (wanted - found.keys(), sorted(found))


@pytest.fixture(scope="module", params=["warren", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if request.param == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        yield Broker(rabbitmq.url, ["--management-url", rabbitmq.management_url], rabbitmq.ctl, True)
        return
    with BrokerProcess(tmp_path_factory.mktemp("doctor"), *PATIENT) as process:
        options = ["--control-socket", str(process.data_dir / "control.sock")]
        yield Broker(process.url, options, warren_ctl(process.data_dir), False)


def make_defects(server: Broker, channel: Channel) -> None:
    name = server.name
    channel.declare(f"{name}.idle", durable=True, x_dead_letter_exchange=f"{name}.dlx", **LIMITED)
    channel.declare(f"{name}.stuck", durable=True, x_dead_letter_exchange=f"{name}.dlx", **LIMITED)
    channel.declare(f"{name}.plain", durable=True)
    channel.declare(f"{name}.lost", durable=True, x_dead_letter_exchange=f"{name}.nowhere", **LIMITED)
    channel.declare(f"{name}.gone", durable=True, x_dead_letter_exchange="",
                    x_dead_letter_routing_key=f"{name}.deleted", **LIMITED)  # fmt: skip
    channel.declare(f"{name}.parked", durable=True, **LIMITED)
    channel.declare(f"{name}.fleeting")
    channel.declare_exchange(f"{name}.dlx", durable=True)
    channel.bind(f"{name}.parked", f"{name}.dlx")
    channel.declare_exchange(f"{name}.unbound", durable=True)
    channel.publish(f"{name}.idle", "waits")
    channel.publish(f"{name}.parked", "dead")
    channel.publish("any", "dropped", exchange=f"{name}.unbound")
    server.ctl(
        "set_policy", f"{name}-nothing", f"^{name}[.]missing", '{"max-length":1}', "--apply-to", "queues"
    )
    server.ctl("set_policy", f"{name}-upper", f"^{name}[.]plain$", '{"max-length":9}', "--priority", "2")
    server.ctl("set_policy", f"{name}-lower", f"^{name}[.]plain$", '{"max-length":8}', "--priority", "1")


EXPECTED = {
    ("W101", "queue NAME.idle"),
    ("W102", "queue NAME.stuck"),
    ("W103", "consumer NAME-tag of queue NAME.stuck"),
    ("W104", "queue NAME.plain"),
    ("E105", "queue NAME.lost"),
    ("E105", "queue NAME.gone"),
    ("I106", "queue NAME.fleeting"),
    ("I108", "queue NAME.parked"),
    ("W301", "policy NAME-nothing"),
    ("I302", "policy NAME-lower"),
    ("W503", "queue NAME.fleeting"),
}


@pytest.fixture(scope="module")
def found(server: Broker) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """Return what `warren doctor` finds on a broker with one defect of each kind."""
    stop = threading.Event()
    with Connection(server.url) as connection, Connection(server.url) as consumer:
        channel = connection.channel()
        make_defects(server, channel)
        receiving = consumer.channel()
        receiving.qos(2)
        receiving.consume(f"{server.name}.stuck", f"{server.name}-tag")

        def publish() -> None:
            while not stop.wait(0.005):
                channel.publish(f"{server.name}.stuck", bytes(200))

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            unbound = "W201" if server.counts_publishes else "I202"
            wanted = {*EXPECTED, (unbound, "exchange NAME.unbound")}
            yield server.until(wanted, "--watch", "6s" if server.counts_publishes else "300ms")
        finally:
            stop.set()
            publisher.join()
        for policy in ("nothing", "upper", "lower"):
            server.ctl("clear_policy", f"{server.name}-{policy}")
        for queue in ("idle", "stuck", "plain", "lost", "gone", "parked", "fleeting"):
            channel.delete(f"{server.name}.{queue}")
        for exchange in ("dlx", "unbound"):
            channel.delete_exchange(f"{server.name}.{exchange}")


@pytest.mark.parametrize("code", sorted({code for code, _ in EXPECTED}))
def test_a_defect_is_found_with_evidence_and_advice(
    found: dict[tuple[str, str], dict[str, Any]], code: str
) -> None:
    for (each, _), finding in found.items():
        if each == code:
            assert finding["evidence"]
            assert finding["advice"]
            assert finding["severity"] == SEVERITIES[code[0]].label
            assert finding["link"].endswith(f"{code.lower()}-{finding['name']}")


def test_what_is_in_order_is_not_found(found: dict[tuple[str, str], dict[str, Any]]) -> None:
    queues = {(code, subject) for code, subject in found if "queue" in subject}
    assert queues == {each for each in EXPECTED if "queue" in each[1]}
    assert not {"W107", "E502"} & {code for code, _ in found}


def test_evidence_has_the_numbers(found: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert found["W101", "queue NAME.idle"]["evidence"] == "1 messages are ready, and there is no consumer"
    assert found["I108", "queue NAME.parked"]["evidence"] == "1 dead letters"
    assert "(prefetch 2)" in found["W103", "consumer NAME-tag of queue NAME.stuck"]["evidence"]


def test_clients_without_confirms_and_heartbeat_are_found(server: Broker) -> None:
    queue = f"{server.name}.unconfirmed"
    stop = threading.Event()
    others = {each["object"] for each in server.doctor("--watch", "0s")[1]["findings"]}
    with Connection(server.url) as connection:
        channel = connection.channel()
        channel.declare(queue, exclusive=True)

        def publish() -> None:
            while not stop.wait(0.005):
                channel.publish(queue, bytes(200))

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            deadline = time.monotonic() + 60
            codes: dict[str, dict[str, Any]] = {}
            while not {"W401", "W402"} <= codes.keys():
                assert time.monotonic() < deadline, codes
                for each in server.doctor("--watch", "300ms")[1]["findings"]:
                    if each["object"].startswith("client ") and each["object"] not in others:
                        codes[each["code"]] = each
        finally:
            stop.set()
            publisher.join()
    assert "without" in codes["W401"]["evidence"]
    assert codes["W402"]["evidence"] == "has heartbeat 0"
    assert codes["W402"]["since"]


def test_an_alarm_is_an_error(server: Broker) -> None:
    server.ctl("set_disk_free_limit", "900000GB")
    try:
        deadline = time.monotonic() + 60
        while True:
            status, printed = server.doctor("--watch", "0s")
            alarms = [each for each in printed["findings"] if each["code"] == "E501"]
            if alarms:
                break
            assert time.monotonic() < deadline, printed
    finally:
        server.ctl("set_disk_free_limit", "50MB")
    assert "disk" in alarms[0]["evidence"]
    assert status == 1


APP = """
from warren.sdk import App, Event, HealthProbe, Queue

class Placed(Event, exchange="{name}.orders", key="placed"):
    n: int

app = App("{url}")
probe = HealthProbe(0)

@app.handle(Placed, queue=Queue("{name}.billing", max_length=10))
async def bill(order: Placed) -> None: ...
"""


def test_an_app_is_compared_with_the_broker(server: Broker, module: Module) -> None:
    name = f"{server.name}app"
    target = module(APP.format(name=name, url=server.url)) + ":app"
    with Connection(server.url) as connection:
        channel = connection.channel()
        channel.declare(f"{name}.billing", durable=True)
        try:
            status, printed = server.doctor(target, "--watch", "0s")
            codes = {(each["code"], each["object"]) for each in printed["findings"]}
            assert {("E601", f"exchange '{name}.orders'"), ("E602", f"queue '{name}.billing'")} <= codes
            assert "W603" in {code for code, _ in codes}
            assert ("W606", "HealthProbe") in codes
            assert status == 1
            # By AMQP alone, with the numbers of the App's queues.
            channel.publish(f"{name}.billing", "waits")
            options, server.options = server.options, []
            try:
                while True:
                    _, printed = server.doctor(target, "--watch", "0s")
                    if ("W101", f"queue {name}.billing") in {
                        (each["code"], each["object"]) for each in printed["findings"]
                    }:
                        break
            finally:
                server.options = options
            assert "W103" in printed["not_checked"]
            assert "W101" not in printed["not_checked"]
        finally:
            channel.delete(f"{name}.billing")


async def run_app_with_own_queues(url: str, name: str) -> None:
    """Run an App whose patterns make queues of their own, and leave messages in each kind of them."""

    class Happened(Event, exchange=f"{name}.events", key="happened"):
        n: int

    app = App(url)
    reminders = wait_queue(f"{name}.due", "14d")
    levels = BinaryDelayQueues(unit=timedelta(hours=1), levels=3)
    stored = asyncio.Event()
    app.declare(wait_queue(f"{name}.vanished", "14d"))
    app.declare(Queue(f"{name}.due", max_length=9), reminders, *levels.topology(f"{name}.delay"))
    app.declare(*levels.target_topology(f"{name}.delay", "", f"{name}.gone"))

    @app.handle(Happened, stream=f"{name}.log", offset="first", resume=True)
    async def read(message: Happened) -> None:
        stored.set()

    async with app:
        for _ in range(3):
            await app.publish(b"later", key=reminders.name)
        start = levels.entry(f"{name}.delay", "", f"{name}.gone", timedelta(hours=4))
        await app.publish(b"later", exchange=start.exchange, key=start.key)
        await app.publish(b"due", key=f"{name}.delay.3x3600000ms.t.{name}.gone")
        await app.publish(b"lost", key=f"{name}.delay.3x3600000ms.lost")
        await app.publish(Happened(n=1))
        await asyncio.wait_for(stored.wait(), PATIENCE)


async def test_queues_of_warrens_own_are_known_for_what_they_are(server: Broker) -> None:
    name = f"{server.name}own"
    await run_app_with_own_queues(server.url, name)
    kept = {
        ("W110", f"queue {name}.delay.3x3600000ms.t.{name}.gone"): "1 messages wait for queue",
        ("W110", f"queue {name}.vanished.wait.1209600000"): "its dead letters will wait for queue",
        ("W111", f"queue {name}.delay.3x3600000ms.lost"): "1 delayed messages were kept here",
        ("I112", f"queue {name}.log.read.position"): "holds the position of a reader of a stream",
    }
    deadline = time.monotonic() + 180
    while True:
        # RabbitMQ collects its statistics every five seconds.
        _, printed = await asyncio.to_thread(server.doctor, "--watch", "300ms")
        found = {
            (each["code"], each["object"]): each for each in printed["findings"] if name in each["object"]
        }
        evidence = {key: each["evidence"] for key, each in found.items()}
        delayed = {where: text for (code, where), text in evidence.items() if code == "I109"}
        is_kept = all(evidence.get(key, "").startswith(text) for key, text in kept.items())
        if is_kept and list(delayed.values()) == ["4 messages are delayed"]:
            break
        assert time.monotonic() < deadline, evidence
    (where,) = delayed
    assert f"{name}.due.wait.1209600000" in where
    about_others = {key for key in found if key not in kept and key[0] not in ("I109", "I106", "I202")}
    assert not about_others
    for each in found.values():
        # What holds state is never to be deleted without a word about it.
        assert "delete it" not in each["advice"]


def test_text_exit_statuses_and_wrong_use(warren: Command, broker: BrokerProcess, module: Module) -> None:
    socket = broker.data_dir / "control.sock"
    with Connection(broker.url) as connection:
        connection.channel().declare("orders", durable=True, x_max_length=9)
        words: list[str | Path] = ["doctor", "--url", broker.url, "--control-socket", socket, "--watch", "0s"]
        done = warren(*words)
        assert done.status == 0
        assert "W104 no-dead-letter-exchange  queue orders\n" in done.out
        assert "page doctor of the documentation, section w104-no-dead-letter-exchange\n" in done.out
        assert "not checked, for lack of data: W102 growing, W103 not-acknowledging" in done.out
        assert warren(*words, "--fail-on", "warning").status == 1
        ignored = [word for code in ("W104", "W402", "W401") for word in ("--ignore", code)]
        assert warren(*words, "--fail-on", "warning", *ignored).status == 0
        assert warren(*words, "--fail-on", "never").status == 0
        assert warren(*words, "--ignore", "W999").status == 2
        # The socket of the default data folder, or none: another broker is not asked.
        alone = warren("doctor", "--url", broker.url, "--watch", "0s")
        assert (alone.status, "give --control-socket PATH" in alone.err) == (2, True)
    assert warren("doctor", "--url", "amqp://127.0.0.1:1/").status == 74
    assert warren("doctor", "--url", broker.url, "--control-socket", "none.sock").status == 74


def test_classic_queues_and_stopped_nodes_of_a_cluster_are_found() -> None:
    checks = {each.code: each for each in CHECKS}
    queues = [
        QueueState("a", 0, 1),
        QueueState("b", 0, 1, type="quorum"),
        QueueState("c", 0, 1, durable=False),
    ]
    alone = Samples([Snapshot("RabbitMQ", 0.0, frozenset(), queues, nodes={"one": True})])
    cluster = Samples([Snapshot("RabbitMQ", 0.0, frozenset(), queues, nodes={"one": True, "two": False})])
    assert not [*checks["W107"].run(alone), *checks["E502"].run(alone)]
    assert [each.subject for each in checks["W107"].run(cluster)] == ["queue a"]
    assert [each.subject for each in checks["E502"].run(cluster)] == ["node two"]


def test_the_page_describes_each_code() -> None:
    page = PAGE.read_text()
    checks = [*CHECKS, *APP_CHECKS]
    assert len({each.code for each in checks}) == len(checks)
    headings = [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted(f"{each.code} {each.name}" for each in checks)
    assert {each.find.__module__ for each in CHECKS} == {module.__name__ for module in CHECK_MODULES}
