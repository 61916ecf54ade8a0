"""Operations over AMQP, over HTTP and by `warren ctl`: the same state, counters, events, log and refusals.

Each case is run over each surface, on a broker of its own, and the outcomes are compared.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import pytest
from pamqp.commands import Exchange, Queue

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.bulk_work import bulk_of
from tests.support.capture_reader import CaptureReader, of
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.metrics_scraper import Scraper
from tests.support.polling import wait_until
from tests.support.surfaces import AMQP, CONTROL, HTTP, Asked, Refusal, Surfaces
from warren.broker import BrokerConfig

EVENTS: Final = "warren.events"
LIMITED: Final = "limited"
"""User who may do everything with what begins with `own`, and nothing else."""
COUNTED: Final = ("rabbitmq_global_messages", "rabbitmq_message_size", "rabbitmq_queue", "rabbitmq_exchange")
OF_CHANNELS: Final = ("with_consumers", "delivered_total", "queue_disk_", "_bytes")
"""Parts of names of metrics that depend on the client's channel, or on the time of a sample."""
OF_SURFACES: Final = ("connection.", "channel.", "audit.", "http_api.", "control_socket.", "bulk_work.")
"""Beginnings of the names of log events that only one surface has."""


@dataclass
class Outcome:
    """State of a broker after an operation, and what it has reported."""

    refusal: Refusal | None = None
    queues: list[Any] = field(default_factory=list)
    exchanges: list[str] = field(default_factory=list)
    bindings: list[tuple[str, str, str]] = field(default_factory=list)
    counters: dict[Any, float] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


Prepare = Callable[["Trial"], None]


class Trial:
    """A broker with a queue `q` in some state, and three surfaces to ask for an operation."""

    def __init__(self, broker: InProcessBroker, kind: str) -> None:
        self.broker = broker
        self.kind = kind
        self.is_held = False
        """True if the bulk work on the queue stands still while the operation is asked for."""
        self.connection = Connection(broker.url)
        self.channel = self.connection.channel()
        self.surfaces = Surfaces(broker)
        self.api = self.surfaces.api
        for name in ("guest", LIMITED):
            pattern = ".*" if name == "guest" else "^own.*"
            self.api.put(f"users/{name}", {"password": name, "tags": "administrator"})
            self.api.put(f"permissions/%2F/{name}", {"configure": pattern, "write": pattern, "read": pattern})
        self.channel.declare("letters")
        self.channel.declare_exchange("source", "topic", durable=True)
        self.channel.declare_exchange("target", "fanout", durable=True)

    def declare(self, **arguments: Any) -> None:
        """Declare the queue `q`, bound to `source` with the key `bound`."""
        arguments["x_queue_type"] = self.kind
        if self.kind != "stream":
            arguments |= {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "letters"}
        self.channel.declare("q", durable=True, **arguments)
        self.channel.bind("q", "source", "bound")

    def publish(self, count: int, **properties: Any) -> None:
        """Publish messages to `q`, and wait until the broker has them."""
        channel = self.connection.channel()
        channel.confirm()
        for number in range(count):
            channel.publish("q", b"%d" % number, message_id=f"m{number}", **properties)
        channel.settled_until(count)
        channel.close()

    # -- outcomes

    def outcome(self, refusal: Refusal | None, caplog: pytest.LogCaptureFixture) -> Outcome:
        """Return the state of the broker, and what it has reported, when it is idle."""
        vhost = self.broker.virtual_host()
        wait_until(
            lambda: self.broker.call(lambda: vhost.bulk_work.is_idle and not vhost.dead_lettering.busy),
            "all dead letters have arrived",
        )
        counters = {
            key: value
            for key, value in self._metrics().items()
            if key[0].startswith(COUNTED) and not any(part in key[0] for part in OF_CHANNELS)
        }
        found = Outcome(refusal, counters=counters)
        for each in self.api.get("queues/%2F?disable_stats=true&enable_queue_totals=true"):
            if each["name"] != EVENTS:
                totals = [each[name] for name in ("messages_ready", "messages_unacknowledged")]
                found.queues.append((each["name"], each["type"], each["arguments"], *totals))
        found.exchanges = [each["name"] for each in self.api.get("exchanges/%2F")]
        found.bindings = [
            (each["source"], each["destination"], each["routing_key"])
            for each in self.api.get("bindings/%2F")
        ]
        found.log = [
            name
            for record in caplog.records
            if record.name.startswith("warren.broker") and record.levelno >= logging.INFO
            for name in [record.getMessage().partition(" ")[0].removeprefix("event=")]
            if not name.startswith(OF_SURFACES)
        ]
        found.events = self._events()
        return found

    def _metrics(self) -> dict[Any, float]:
        broker = self.broker.broker
        assert broker is not None
        scraper = Scraper(f"http://{broker.prometheus_addresses[0]}")
        of_all = {
            key: value for key, value in scraper.samples().items() if not key[0].startswith("rabbitmq_queue_")
        }
        of_each = scraper.samples("/metrics/per-object")
        return of_all | {key: value for key, value in of_each.items() if ("queue", EVENTS) not in key[1]}

    def _events(self) -> list[Any]:
        """Return the life-cycle events since the preparation, without what names a client."""
        self.channel.publish("nowhere", message_id="end")
        reading = CaptureReader(self.broker.url, EVENTS)
        try:
            reading.until(lambda found: bool(of(found.events, "published", message_id="end")))
            events = [
                tuple(event.get(name) for name in ("event", "message_id", "exchange", "queue", "reason"))
                for event in reading.events
            ]
            prepared = [event[1] for event in events].index("prepared")
            return events[prepared + 1 : -1]
        finally:
            reading.close()


def run(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    asked: Asked,
    *,
    kind: str = "classic",
    prepare: Prepare = lambda trial: trial.declare(),
    user: str = "guest",
    surfaces: Iterable[str] = (AMQP, HTTP, CONTROL),
    **config: Any,
) -> Outcome:
    """Ask for an operation over each surface, on a broker of its own; return the outcome, which is the same for all."""
    caplog.set_level(logging.INFO, "warren.broker")
    settings = BrokerConfig(
        management_port=0,
        prometheus_port=0,
        capture_events=(EVENTS,),
        handshake_timeout=PATIENCE,
        login_failure_delay=0,
        **config,
    )
    outcomes: dict[str, Outcome] = {}
    for surface in surfaces:
        if surface == CONTROL and asked.control is None:
            continue
        with InProcessBroker(tmp_path / surface.replace(" ", "-"), config=settings) as broker:
            trial = Trial(broker, kind)
            prepare(trial)
            trial.channel.publish("nowhere", message_id="prepared")
            trial.channel.state("letters")
            caplog.clear()
            refusal = while_held(trial, lambda: trial.surfaces.ask(surface, asked, user))  # noqa: B023 - is called at once
            outcomes[surface] = trial.outcome(refusal, caplog)
            trial.connection.abort()
    first = outcomes[AMQP]
    for surface, outcome in outcomes.items():
        if first.refusal is None or outcome.refusal is None:
            assert outcome.refusal == first.refusal, surface
        else:
            assert outcome.refusal.agrees(first.refusal), (surface, outcome.refusal, first.refusal)
        found = differences(first, outcome)
        assert found == {}, surface
    return first


def differences(first: Outcome, second: Outcome) -> dict[str, Any]:
    """Return the attributes of two outcomes that differ, but for their refusals."""
    found: dict[str, Any] = {}
    for attribute in fields(Outcome):
        one, two = getattr(first, attribute.name), getattr(second, attribute.name)
        if attribute.name == "counters":
            found |= {
                str(key): (one.get(key), two.get(key)) for key in one | two if one.get(key) != two.get(key)
            }
        elif attribute.name != "refusal" and one != two:
            found[attribute.name] = (one, two)
    return found


def while_held(trial: Trial, ask: Callable[[], Refusal | None]) -> Refusal | None:
    """Ask for an operation; if the state is `held`, while the bulk work on the queue stands still, and goes on later."""
    if not trial.is_held:
        return ask()
    answers: list[Refusal | None] = []
    asking = threading.Thread(target=lambda: answers.append(ask()))
    queue = trial.broker.virtual_host().queues[b"q"]
    with bulk_of(trial.broker).paused():
        asking.start()
        wait_until(
            lambda: (
                trial.surfaces.is_answered
                or not asking.is_alive()
                or trial.broker.call(lambda: not queue.is_settled)
            ),
            "the operation has arrived",
        )
    asking.join(PATIENCE)
    return answers[0]


# -- states of a queue


def empty(trial: Trial) -> None:
    trial.declare()


def ready(trial: Trial) -> None:
    trial.declare()
    trial.publish(3, delivery_mode=2)


def expired(trial: Trial) -> None:
    """Have three messages at the head expire, which the queue has not noticed."""
    trial.declare(x_message_ttl=1000)
    trial.publish(3)
    trial.broker.jump(2)


def held(trial: Trial) -> None:
    """Have so many messages expire that their removal is bulk work."""
    trial.declare(x_message_ttl=1000)
    trial.publish(200)
    trial.broker.jump(2)
    trial.is_held = True


def full(trial: Trial) -> None:
    trial.declare(x_max_length=3, x_overflow="reject-publish")
    trial.publish(3)


def used(trial: Trial) -> None:
    """Have a consumer, which has one of three messages."""
    trial.declare()
    trial.channel.qos(1)
    trial.channel.consume("q", "consumer")
    trial.publish(3)
    trial.channel.deliveries(1)


def exclusive(trial: Trial) -> None:
    """Have the queue belong to another connection."""
    trial.channel.declare("q", exclusive=True)
    trial.channel.bind("q", "source", "bound")
    trial.publish(3)


# -- operations on the queue

QUEUE: Final = "queues/%2F/q"
BOUND: Final = "bindings/%2F/e/source/q/q"


def get_and_acknowledge(channel: Channel) -> None:
    message = channel.get("q")
    if message is not None:
        channel.ack(message.tag)
        channel.state("letters")


GET: Final = Asked(
    get_and_acknowledge,
    ("POST", f"{QUEUE}/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}),
)
ON_A_QUEUE: Final = {
    "delete": Asked((Queue.Delete(queue="q"),), ("DELETE", QUEUE, None), ("delete_queue", {"queue": "q"})),
    "delete if unused": Asked(
        (Queue.Delete(queue="q", if_unused=True),),
        ("DELETE", f"{QUEUE}?if-unused=true", None),
        ("delete_queue", {"queue": "q", "if_unused": True}),
    ),
    "delete if empty": Asked(
        (Queue.Delete(queue="q", if_empty=True),),
        ("DELETE", f"{QUEUE}?if-empty=true", None),
        ("delete_queue", {"queue": "q", "if_empty": True}),
    ),
    "purge": Asked(
        (Queue.Purge(queue="q"),), ("DELETE", f"{QUEUE}/contents", None), ("purge_queue", {"queue": "q"})
    ),
    "get": GET,
    "declare otherwise": Asked(
        (Queue.Declare(queue="q", durable=True, auto_delete=True),),
        ("PUT", QUEUE, {"durable": True, "auto_delete": True}),
    ),
    "bind": Asked(
        (Queue.Bind(queue="q", exchange="source", routing_key="new"),),
        ("POST", BOUND, {"routing_key": "new"}),
    ),
    "unbind": Asked(
        (Queue.Unbind(queue="q", exchange="source", routing_key="bound"),), ("DELETE", f"{BOUND}/bound", None)
    ),
}
STATES: Final = {
    "classic": (empty, ready, expired, held, full, used),
    "quorum": (empty, ready, expired, held, used),
    "stream": (empty, ready),
}
AT_EACH_MERGE: Final = {("classic", expired), ("classic", held), ("quorum", ready), ("stream", ready)}


def params(cases: Mapping[str, Asked]) -> list[Any]:
    return [pytest.param(asked, id=name.replace(" ", "-")) for name, asked in cases.items()]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "prepare"),
    [
        pytest.param(
            kind,
            state,
            marks=() if (kind, state) in AT_EACH_MERGE else pytest.mark.slow,
            id=f"{kind}-{state.__name__}",
        )
        for kind, states in STATES.items()
        for state in states
    ],
)
@pytest.mark.parametrize("asked", params(ON_A_QUEUE))
def test_an_operation_on_a_queue_has_one_outcome_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, prepare: Prepare, asked: Asked
) -> None:
    run(tmp_path, caplog, asked, kind=kind, prepare=prepare)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prepare", [exclusive, ready])
@pytest.mark.parametrize("asked", params(ON_A_QUEUE))
def test_an_operation_on_a_queue_is_refused_alike_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prepare: Prepare, asked: Asked
) -> None:
    user = LIMITED if prepare is ready else "guest"
    outcome = run(tmp_path, caplog, asked, prepare=prepare, user=user, surfaces=(AMQP, HTTP))
    assert outcome.refusal is not None
    assert outcome.queues[-1][-2] == 3


def test_operators_may_use_exclusive_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with InProcessBroker(tmp_path / "data", config=BrokerConfig(management_port=0)) as broker:
        trial = Trial(broker, "classic")
        exclusive(trial)
        assert trial.surfaces.ask(CONTROL, ON_A_QUEUE["purge"], "") is None
        assert trial.channel.ready("q") == 0
        trial.connection.abort()


def test_a_single_active_consumer_keeps_others_from_getting_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def prepare(trial: Trial) -> None:
        trial.declare(x_single_active_consumer=True)
        trial.publish(3)

    outcome = run(tmp_path, caplog, GET, kind="quorum", prepare=prepare)
    assert outcome.refusal is not None
    assert outcome.refusal.status == 400
    assert outcome.queues[-1][-2] == 3


# -- operations on exchanges, bindings and queues to be made


def declare_exchange(name: str, kind: str = "topic", arguments: Mapping[str, Any] = {}) -> Asked:
    return Asked(
        (Exchange.Declare(exchange=name, exchange_type=kind, durable=True, arguments=dict(arguments)),),
        (
            "PUT",
            f"exchanges/%2F/{name or 'amq.default'}",
            {"type": kind, "durable": True, "arguments": dict(arguments)},
        ),
    )


def delete_exchange(name: str, *, if_unused: bool = False) -> Asked:
    query = "?if-unused=true" if if_unused else ""
    return Asked(
        (Exchange.Delete(exchange=name, if_unused=if_unused),),
        ("DELETE", f"exchanges/%2F/{name or 'amq.default'}{query}", None),
    )


def declare_queue(name: str, arguments: Mapping[str, Any] = {}) -> Asked:
    return Asked(
        (Queue.Declare(queue=name, durable=True, arguments=dict(arguments)),),
        ("PUT", f"queues/%2F/{name}", {"durable": True, "arguments": dict(arguments)}),
    )


def bind_queue(source: str, queue: str) -> Asked:
    return Asked(
        (Queue.Bind(queue=queue, exchange=source, routing_key="key"),),
        ("POST", f"bindings/%2F/e/{source or 'amq.default'}/q/{queue}", {"routing_key": "key"}),
    )


def bind_exchange(source: str, destination: str) -> Asked:
    ends = [name or "amq.default" for name in (source, destination)]
    return Asked(
        (Exchange.Bind(destination=destination, source=source, routing_key="key"),),
        ("POST", f"bindings/%2F/e/{ends[0]}/e/{ends[1]}", {"routing_key": "key"}),
    )


DONE: Final = {
    "declare an exchange": declare_exchange("new"),
    "declare an exchange again": declare_exchange("source"),
    "declare an exchange with an alternate": declare_exchange(
        "new", arguments={"alternate-exchange": "target"}
    ),
    "delete an exchange": delete_exchange("source"),
    "delete an unused exchange": delete_exchange("target", if_unused=True),
    "declare a queue": declare_queue("new"),
    "declare a quorum queue": declare_queue("new", {"x-queue-type": "quorum"}),
    "declare a stream": declare_queue("new", {"x-queue-type": "stream"}),
    "bind a queue": bind_queue("source", "q"),
    "bind an exchange": bind_exchange("source", "target"),
}
REFUSED: Final = {
    "declare the default exchange": declare_exchange(""),
    "declare a reserved exchange": declare_exchange("amq.mine"),
    "declare another type": declare_exchange("source", "fanout"),
    "declare an unknown type": declare_exchange("new", "strange"),
    "declare an invalid alternate": declare_exchange("new", arguments={"alternate-exchange": True}),
    "delete the default exchange": delete_exchange(""),
    "delete a predeclared exchange": delete_exchange("amq.topic"),
    "delete a used exchange": delete_exchange("source", if_unused=True),
    "declare a reserved queue": declare_queue("amq.mine"),
    "declare an invalid argument": declare_queue("new", {"x-max-length": -1}),
    "declare an unknown type of queue": declare_queue("new", {"x-queue-type": "strange"}),
    "bind the default exchange": bind_queue("", "q"),
    "bind the default exchange to an exchange": bind_exchange("", "target"),
    "bind an exchange to the default exchange": bind_exchange("source", ""),
    "bind a missing queue": bind_queue("source", "missing"),
    "bind a missing exchange": bind_queue("missing", "q"),
    "bind a missing exchange to an exchange": bind_exchange("missing", "target"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("asked", params(DONE))
@pytest.mark.parametrize("user", ["guest", LIMITED])
def test_a_declaration_has_one_outcome_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: Asked, user: str
) -> None:
    outcome = run(tmp_path, caplog, asked, user=user)
    assert (outcome.refusal is not None) is (user == LIMITED)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("asked", params(REFUSED))
@pytest.mark.parametrize("user", ["guest", pytest.param(LIMITED, marks=pytest.mark.slow)])
def test_a_declaration_is_refused_alike_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: Asked, user: str
) -> None:
    outcome = run(tmp_path, caplog, asked, user=user)
    assert outcome.refusal is not None
    assert outcome.bindings.count(("source", "q", "bound")) == 1
    assert len(outcome.bindings) == 4, "and three of the default exchange"


@pytest.mark.parametrize(
    "asked",
    params(
        {
            "alternate": declare_exchange("own-new", arguments={"alternate-exchange": "target"}),
            "dead letter": declare_queue("own-new", {"x-dead-letter-exchange": "target"}),
        }
    ),
)
def test_a_declaration_needs_the_right_to_write_where_it_forwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: Asked
) -> None:
    outcome = run(tmp_path, caplog, asked, user=LIMITED)
    assert outcome.refusal is not None
    assert outcome.refusal.status == 401
    assert "access to exchange 'target'" in (outcome.refusal.text or "")


def test_the_limit_of_queues_holds_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def prepare(trial: Trial) -> None:
        trial.declare()
        trial.api.put("vhost-limits/%2F/max-queues", {"value": 3})

    outcome = run(tmp_path, caplog, declare_queue("new"), prepare=prepare)
    text = "cannot declare queue 'new': queue limit in vhost '/' (3) is reached"
    assert outcome.refusal == Refusal(400, text)


def test_only_who_owns_an_exclusive_queue_removes_its_bindings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the arguments come in another order than that in which they were given."""

    def prepare(trial: Trial) -> None:
        trial.channel.declare("q", exclusive=True)
        binding = Queue.Bind(queue="q", exchange="source", routing_key="k", arguments={"a": 1, "b": 2})
        trial.channel.call(binding, Queue.BindOk)

    asked = Asked(
        (Queue.Unbind(queue="q", exchange="source", routing_key="k", arguments={"b": 2, "a": 1}),),
        ("", "", None),
    )
    outcome = run(tmp_path, caplog, asked, prepare=prepare, surfaces=(AMQP,))
    assert outcome.refusal is not None
    assert ("source", "q", "k") in outcome.bindings


# -- publishing


def publish(exchange: str, key: str, **properties: Any) -> Asked:
    def over_amqp(channel: Channel) -> None:
        channel.confirm()
        channel.publish(key, b"body", exchange=exchange, mandatory=True, **properties)
        if channel.settled(1) != [True]:
            raise Closed(406, "REFUSED - a queue refused the message, because it is full", (60, 40))

    given = {"type" if name == "message_type" else name: value for name, value in properties.items()}
    return Asked(
        over_amqp,
        (
            "POST",
            f"exchanges/%2F/{exchange or 'amq.default'}/publish",
            {
                "routing_key": key,
                "properties": given,
                "payload": "body",
                "payload_encoding": "string",
            },
        ),
    )


PUBLISHED: Final = {
    "to a queue": publish("", "q", message_id="m"),
    "to an exchange": publish("source", "bound", message_id="m"),
    "persistent": publish("source", "bound", message_id="m", delivery_mode=2),
    "with priority and expiration": publish("", "q", message_id="m", priority=3, expiration="60000"),
    "with CC": publish("", "nowhere", message_id="m", headers={"CC": ["q", "letters"]}),
    "with BCC": publish("source", "none", message_id="m", headers={"BCC": ["bound"]}),
    "unroutable": publish("source", "nowhere", message_id="m"),
    "with the user's name": publish("", "q", message_id="m", user_id="guest"),
    "with a publishing id": publish("", "q", message_id="m", headers={"x-publishing-id": 1}),
}
NOT_PUBLISHED: Final = {
    "to no exchange": publish("missing", "q"),
    "to an internal exchange": publish("amq.rabbitmq.trace", "q"),
    "with another user's name": publish("", "q", user_id="somebody"),
    "with a wrong expiration": publish("", "q", expiration="soon"),
    "with a wrong CC": publish("", "q", headers={"CC": "q"}),
    "with direct reply-to": publish("", "q", reply_to="amq.rabbitmq.reply-to"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("asked", params(PUBLISHED))
def test_a_publish_has_one_outcome_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: Asked
) -> None:
    outcome = run(tmp_path, caplog, asked)
    assert outcome.refusal is None
    assert [event[0] for event in outcome.events if event[1] == "m"]


@pytest.mark.parametrize("asked", params(NOT_PUBLISHED))
def test_a_publish_is_refused_alike_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asked: Asked
) -> None:
    assert run(tmp_path, caplog, asked).refusal is not None


def test_a_publish_needs_the_right_to_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run(tmp_path, caplog, publish("source", "bound"), user=LIMITED).refusal is not None


def test_a_full_queue_refuses_a_publish_over_all_surfaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run(tmp_path, caplog, publish("", "q", message_id="m"), prepare=full)
    assert outcome.refusal is not None
    assert outcome.queues[-1][-2] == 3


@pytest.mark.parametrize("surface", [AMQP, HTTP])
def test_each_surface_adds_the_timestamp_of_the_interceptor(tmp_path: Path, surface: str) -> None:
    config = BrokerConfig(management_port=0, timestamps="always", handshake_timeout=PATIENCE)
    with InProcessBroker(tmp_path / "data", config=config) as broker:
        trial = Trial(broker, "classic")
        trial.declare()
        assert trial.surfaces.ask(surface, publish("", "q"), "guest") is None
        message = trial.channel.get("q")
        assert message is not None
        assert message.properties.timestamp is not None
        assert "timestamp_in_ms" in message.headers
        trial.connection.abort()
