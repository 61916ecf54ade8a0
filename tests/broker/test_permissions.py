"""Permissions that each method needs: the same on Warren and on RabbitMQ.

https://www.rabbitmq.com/docs/access-control
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlsplit

import pytest
from pamqp import base, commands
from pamqp.commands import Basic, Exchange, Queue

from tests.support.broker_behaviour import behaviour
from tests.support.broker_definitions import broker_with_definitions, definitions
from tests.support.frames import frame
from tests.support.polling import wait_until
from tests.support.rabbitmq import installed
from tests.support.raw_client import RawClient, Refusal, made

PREPARED = definitions(
    users=[
        {"name": "ann", "password": "a", "tags": ""},
        {"name": "topical", "password": "t", "tags": ""},
        {"name": "mask", "password": "m", "tags": "impersonator"},
        {"name": "capped", "password": "c", "tags": "", "limits": {"max-connections": 2, "max-channels": 2}},
        {"name": "barred", "password": "b", "tags": "", "limits": {"max-connections": 0}},
        {"name": "nowhere", "password": "n", "tags": ""},
        {"name": "dotted", "password": "d", "tags": ""},
    ],
    vhosts=[{"name": "small"}, {"name": "shut"}],
    permissions=[
        ("guest", "small", ".*", ".*", ".*"),
        ("guest", "shut", ".*", ".*", ".*"),
        ("ann", "/", "^(c-|amq\\.gen)", "^w-|^c-dead|^amq\\.default$", "^r-|-readable$"),
        ("ann", "small", "", "", ""),
        ("topical", "/", ".*", ".*", ".*"),
        ("mask", "/", ".*", ".*", ".*"),
        ("capped", "/", ".*", ".*", ".*"),
        ("barred", "/", ".*", ".*", ".*"),
        # A backtracking engine takes 2 ** n steps for n letters and a sign.
        ("dotted", "/", "^([a-z]+\\.?)+$", ".*", ".*"),
    ],
    topic_permissions=[
        ("topical", "/", "amq.topic", "^{username}\\.", "^open\\."),
        ("dotted", "/", "amq.topic", "^([a-z]+\\.?)+$", ".*"),
    ],
    vhost_limits={"small": {"max-connections": 2, "max-queues": 1}, "shut": {"max-connections": 0}},
)

As = Callable[..., RawClient]
ExpectedRefusal = Callable[[Refusal], Refusal]


@pytest.fixture(scope="module", params=["warren", "warren-3.10", "rabbitmq"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "rabbitmq" and not installed():
        pytest.skip("rabbitmq-server is not installed")
    with broker_with_definitions(request.param, PREPARED) as url, RawClient(url) as peer:
        peer.connect().open()
        for queue in ("r-queue", "w-queue", "queue"):
            peer.declare(queue, durable=True)
        for exchange in ("r-exchange", "w-exchange", "exchange"):
            peer.declare_exchange(exchange, "topic", durable=True)
        yield url


@pytest.fixture(scope="module")
def expected_refusal(url: str) -> ExpectedRefusal:
    """Return the text of a refused permission for this broker."""
    with RawClient(url) as peer:
        peer.greet()
        names = behaviour(peer.server).names_the_permission
    return lambda refusal: (
        refusal if names else refusal._replace(text=re.sub("- [a-z]+ access", "- access", refusal.text))
    )


@pytest.fixture
def login(url: str) -> Iterator[As]:
    """Return a function that logs in as a user and opens channel 1."""
    opened: list[RawClient] = []

    def login(user: str, vhost: str = "/", password: str | None = None) -> RawClient:
        parts = urlsplit(url)
        secret = password or ("guest" if user == "guest" else user[0])
        peer = RawClient(f"amqp://{user}:{secret}@{parts.hostname}:{parts.port}/{quote(vhost, safe='')}")
        opened.append(peer)
        return peer

    yield login
    for peer in opened:
        peer.abort()


@pytest.fixture
def ann(login: As) -> RawClient:
    return login("ann").connect().open()


def refused(what: str, kind: str, name: str, method: tuple[int, int], user: str = "ann") -> Refusal:
    text = f"ACCESS_REFUSED - {what} access to {kind} '{name}' in vhost '/' refused for user '{user}'"
    return Refusal("channel", 403, text, method)


def args(**fields: object) -> dict[str, object]:
    return {key.replace("_", "-"): value for key, value in fields.items()}


def queue(name: str, **arguments: object) -> base.Frame:
    return made(Queue.Declare, queue=name, arguments=args(**arguments))


def exchange(name: str, **arguments: object) -> base.Frame:
    return made(Exchange.Declare, exchange=name, exchange_type="topic", arguments=args(**arguments))


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (queue("queue"), refused("configure", "queue", "queue", (50, 10))),
        (queue("queue-c-"), refused("configure", "queue", "queue-c-", (50, 10))),
        (queue("c-q", x_dead_letter_exchange="w-exchange"), refused("read", "queue", "c-q", (50, 10))),
        (
            queue("c-readable", x_dead_letter_exchange="exchange"),
            refused("write", "exchange", "exchange", (50, 10)),
        ),
        (
            queue("amq.queue"),
            Refusal(
                "channel",
                403,
                "ACCESS_REFUSED - queue name 'amq.queue' contains reserved prefix 'amq.*'",
                (50, 10),
            ),
        ),
        (made(Queue.Delete, queue="queue"), refused("configure", "queue", "queue", (50, 40))),
        (made(Queue.Delete, queue="missing"), refused("configure", "queue", "missing", (50, 40))),
        (made(Queue.Purge, queue="queue"), refused("read", "queue", "queue", (50, 30))),
        (
            made(Queue.Bind, queue="queue", exchange="r-exchange", routing_key="k"),
            refused("write", "queue", "queue", (50, 20)),
        ),
        (
            made(Queue.Bind, queue="w-queue", exchange="exchange", routing_key="k"),
            refused("read", "exchange", "exchange", (50, 20)),
        ),
        (
            made(Queue.Unbind, queue="w-queue", exchange="exchange", routing_key="k"),
            refused("read", "exchange", "exchange", (50, 50)),
        ),
        (exchange("exchange"), refused("configure", "exchange", "exchange", (40, 10))),
        (exchange("c-x", alternate_exchange="w-exchange"), refused("read", "exchange", "c-x", (40, 10))),
        (
            exchange("c-readable", alternate_exchange="exchange"),
            refused("write", "exchange", "exchange", (40, 10)),
        ),
        (made(Exchange.Delete, exchange="exchange"), refused("configure", "exchange", "exchange", (40, 20))),
        (
            made(Exchange.Bind, destination="exchange", source="r-exchange", routing_key="k"),
            refused("write", "exchange", "exchange", (40, 30)),
        ),
        (
            made(Exchange.Unbind, destination="w-exchange", source="exchange", routing_key="k"),
            refused("read", "exchange", "exchange", (40, 40)),
        ),
        (made(Basic.Consume, queue="queue"), refused("read", "queue", "queue", (60, 20))),
        (made(Basic.Get, queue="missing"), refused("read", "queue", "missing", (60, 70))),
    ],
    ids=lambda value: value.name if isinstance(value, base.Frame) else "",
)
def test_a_method_without_its_permission_is_refused(
    ann: RawClient, expected_refusal: ExpectedRefusal, command: base.Frame, refusal: Refusal
) -> None:
    assert ann.refused(command) == expected_refusal(refusal)
    # Its channel is closed, and nothing else.
    ann.open(2).sync(2)


def test_methods_with_their_permissions_succeed(ann: RawClient) -> None:
    assert ann.declare("c-readable", exclusive=True, arguments=args(x_dead_letter_exchange="w-exchange"))
    assert ann.declare("", exclusive=True).startswith("amq.gen-")
    ann.declare_exchange("c-readable", arguments=args(alternate_exchange="w-exchange"))
    ann.bind("w-queue", "r-exchange", "k")
    ann.bind_exchange("w-exchange", "r-exchange")
    assert ann.purge("r-queue") == 0
    ann.publish("w-exchange", "k")
    ann.publish("", "r-queue", b"by the default exchange")
    ann.call(made(Basic.Get, queue="r-queue", no_ack=True), 1, Basic.GetOk)
    ann.read()
    ann.read()
    # One of the permissions is enough for a passive declare.
    for kind in ("r", "w"):
        ann.declare(f"{kind}-queue", passive=True)
        ann.declare_exchange(f"{kind}-exchange", passive=True)
    ann.declare_exchange("c-readable", passive=True)
    ann.call(made(Exchange.Delete, exchange="c-readable"), 1, Exchange.DeleteOk)


@pytest.mark.parametrize("name", ["{}", "missing"])
@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_a_passive_declare_without_any_permission_is_refused_since_4_3(
    ann: RawClient, kind: str, name: str
) -> None:
    name = name.format(kind)
    command = queue(name) if kind == "queue" else exchange(name)
    command.passive = True  # type: ignore[attr-defined]
    if behaviour(ann.server).is_4_3:
        method = (50, 10) if kind == "queue" else (40, 10)
        assert ann.refused(command) == refused("configure", kind, name, method)
    elif name == "missing":
        assert ann.refused(command).code == 404
    else:
        ann.call(command, 1, Queue.DeclareOk if kind == "queue" else Exchange.DeclareOk)


def test_a_generated_queue_name_is_checked(login: As, expected_refusal: ExpectedRefusal) -> None:
    peer = entered(login, "ann", "small").open()
    found = peer.refused(queue(""))
    made_up = re.sub("amq.gen-[^']+", "amq.gen-x", found.text)
    text = "ACCESS_REFUSED - configure access to queue 'amq.gen-x' in vhost 'small' refused for user 'ann'"
    assert found._replace(text=made_up) == expected_refusal(Refusal("channel", 403, text, (50, 10)))


@pytest.mark.parametrize("name", ["exchange", "missing"])
def test_publishing_needs_write(ann: RawClient, expected_refusal: ExpectedRefusal, name: str) -> None:
    """Only a user with write permission learns whether the exchange exists."""
    ann.publish(name, "k")
    assert ann.refusal() == expected_refusal(refused("write", "exchange", name, (60, 40)))


def test_permissions_for_the_default_exchange_use_the_name_amq_default(
    login: As, expected_refusal: ExpectedRefusal
) -> None:
    peer = entered(login, "ann", "small").open()
    peer.publish("", "k")
    text = "write access to exchange 'amq.default' in vhost 'small' refused for user 'ann'"
    assert peer.refusal() == expected_refusal(Refusal("channel", 403, f"ACCESS_REFUSED - {text}", (60, 40)))


def topic_refused(what: str, key: str, method: tuple[int, int]) -> Refusal:
    text = f"{what} access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'topical'"
    return Refusal("channel", 403, f"ACCESS_REFUSED - {text}", method)


def test_topics(login: As, expected_refusal: ExpectedRefusal) -> None:
    """https://www.rabbitmq.com/docs/access-control#topic-authorisation"""
    peer = login("topical").connect().open()
    own = peer.declare(exclusive=True)
    peer.bind(own, "amq.topic", "open.#")
    peer.publish("amq.topic", "topical.1")
    peer.publish("amq.direct", "any")
    peer.publish("amq.topic", "topical.2")
    peer.sync()
    peer.publish("amq.topic", "other.1")
    assert peer.refusal() == expected_refusal(topic_refused("write", "other.1", (60, 40)))
    peer.open(2)
    bind = made(Queue.Bind, queue=own, exchange="amq.topic", routing_key="closed.#")
    assert peer.refused(bind, 2) == expected_refusal(topic_refused("read", "closed.#", (50, 20)))


def test_a_pattern_that_needs_many_steps_refuses_as_any_other(login: As) -> None:
    """RabbitMQ gives up after some steps, and refuses, too."""
    peer = login("dotted").connect().open()
    name = "a" * 200 + "!"
    assert peer.refused(queue(name)).code == 403
    peer.open(1)
    peer.publish("amq.topic", "allowed.key")
    peer.sync()
    peer.publish("amq.topic", name)
    assert peer.refusal().code == 403


def test_a_user_id_must_be_the_users_own_unless_it_may_impersonate(login: As) -> None:
    properties = commands.Basic.Properties(user_id="mask")
    mask = login("mask").connect().open()
    mask.publish("amq.fanout", "", b"", properties)
    mask.publish("amq.fanout", "", b"", commands.Basic.Properties(user_id="somebody"))
    mask.sync()
    guest = login("guest").connect().open()
    guest.publish("amq.fanout", "", b"", properties)
    text = "PRECONDITION_FAILED - user_id property set to 'mask' but authenticated user was 'guest'"
    assert guest.refusal() == Refusal("channel", 406, text, (60, 40))


# -- limits


def open_refused(peer: RawClient) -> Refusal:
    peer.log_in()
    peer.tune()
    return peer.refused(made(commands.Connection.Open, virtual_host=peer.virtual_host), 0)


@pytest.mark.parametrize(
    ("user", "vhost", "text"),
    [
        ("nowhere", "/", "access to vhost '/' refused for user 'nowhere'"),
        ("nowhere", "missing", "vhost missing not found"),
        ("guest", "shut", "access to vhost 'shut' refused for user 'guest': connection limit (0) is reached"),
        ("barred", "/", "connection refused for user 'barred': user connection limit (0) is reached"),
    ],
)
def test_opening_a_virtual_host_is_refused(login: As, user: str, vhost: str, text: str) -> None:
    peer = login(user, vhost)
    assert open_refused(peer) == Refusal("connection", 530, f"NOT_ALLOWED - {text}", (10, 40))
    assert peer.at_end()


def entered(login: As, user: str, vhost: str = "/") -> RawClient:
    """Open a connection; retry, because RabbitMQ may briefly count the ended connections of earlier tests."""
    found: list[RawClient] = []

    def let_in() -> bool:
        peer = login(user, vhost)
        peer.log_in()
        peer.tune()
        peer.send(made(commands.Connection.Open, virtual_host=peer.virtual_host), 0)
        _, answer = peer.read_method()
        if isinstance(answer, commands.Connection.OpenOk):
            found.append(peer)
        else:
            assert isinstance(answer, commands.Connection.Close)
            assert "connection limit (2) is reached" in answer.reply_text
            peer.abort()
        return bool(found)

    wait_until(let_in, f"{user} is let in to {vhost}")
    return found[0]


def test_the_number_of_connections_of_a_virtual_host_is_limited(login: As) -> None:
    peers = [entered(login, "guest", "small").open() for _ in range(2)]
    text = "NOT_ALLOWED - access to vhost 'small' refused for user 'guest': connection limit (2) is reached"
    assert open_refused(login("guest", "small")).text == text
    for peer in peers:
        peer.close()


def test_the_number_of_queues_of_a_virtual_host_is_limited(login: As) -> None:
    peer = entered(login, "guest", "small").open()
    peer.declare("one", exclusive=True)
    peer.declare("one", exclusive=True)
    found = peer.refused(queue("two"))
    text = "cannot declare queue 'two': queue limit in vhost 'small' (1) is reached"
    assert found == Refusal("channel", 406, f"PRECONDITION_FAILED - {text}", (50, 10))
    peer.close()


def test_the_number_of_connections_and_channels_of_a_user_is_limited(login: As) -> None:
    first, second = login("capped").connect(), login("capped").connect()
    text = "NOT_ALLOWED - connection refused for user 'capped': user connection limit (2) is reached"
    assert open_refused(login("capped")).text == text
    first.open(1)
    second.open(1)
    found = first.refused(commands.Channel.Open(), 2)
    text = "number of channels opened for user 'capped' has reached the maximum allowed user limit of (2)"
    assert (found.scope, found.code, found.text) == ("connection", 530, f"NOT_ALLOWED - {text}")
    second.close()


# -- old and rare methods


def test_a_new_secret_is_accepted(login: As) -> None:
    """A password does not expire, so a new secret changes nothing."""
    peer = login("ann").connect().open()
    peer.send(made(commands.Connection.UpdateSecret, new_secret="new", reason="rotation"), 0)
    peer.expect(commands.Connection.UpdateSecretOk)
    peer.publish("w-exchange", "k")
    peer.sync()


def test_an_access_ticket_is_granted(ann: RawClient) -> None:
    """AMQP 0-8's access.request has a realm and five bits; the reply is a ticket without a meaning."""
    ann.send_bytes(frame(1, 1, struct.pack(">HH", 30, 10) + b"\x05/data" + b"\x1f"))
    head = ann.read_bytes(7)
    payload = ann.read_bytes(struct.unpack(">BHI", head)[2] + 1)
    assert (head[0], payload) == (1, struct.pack(">HHH", 30, 11, 1) + b"\xce")
    ann.sync()
