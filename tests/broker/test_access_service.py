"""Back end `http`: an access-control service decides on logins and permissions, without blocking anybody else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.broker.conftest import pass_time
from tests.support.access_service import FakeAccessService
from tests.support.blocking_client import Channel, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient
from warren.broker import BrokerConfig
from warren.broker.access.access_service import access_service
from warren.broker.access.access_service.access_service_config import AccessServiceConfig
from warren.broker.access.access_service.questions import Answer, parse_answer


@pytest.fixture
def service() -> Iterator[FakeAccessService]:
    with FakeAccessService() as service:
        yield service


def config(service: FakeAccessService, *backends: str, **more: Any) -> BrokerConfig:
    settings: dict[str, Any] = {"request_timeout": 60_000, **service.paths}
    settings |= {
        name: more.pop(name) for name in list(more) if name in AccessServiceConfig.__dataclass_fields__
    }
    # An answer is kept for longer than any test lasts, on a busy machine too.
    more = {"auth_cache_ttl": 3_600_000, **more}
    return BrokerConfig(
        auth_backends=backends or ("http", "internal"),
        auth_http=AccessServiceConfig(**settings),
        login_failure_delay=0,
        handshake_timeout=PATIENCE,
        management_port=0,
        **more,
    )


@pytest.fixture
def broker(service: FakeAccessService) -> Iterator[InProcessBroker]:
    with InProcessBroker(config=config(service)) as broker:
        yield broker


def url(broker: InProcessBroker, user: str = "ann", password: str = "right") -> str:
    assert broker.broker is not None
    return f"amqp://{user}:{password}@127.0.0.1:{broker.broker.port}/"


@pytest.fixture
def channel(broker: InProcessBroker) -> Iterator[Channel]:
    with Connection(url(broker)) as connection:
        yield connection.channel()


def api_of(broker: InProcessBroker, user: str = "ann", password: str = "right") -> HttpApi:
    assert broker.broker is not None
    return HttpApi(f"http://{broker.broker.management_addresses[0]}", user, password)


def test_the_service_is_asked_what_rabbitmq_asks(service: FakeAccessService, channel: Channel) -> None:
    channel.declare("q", durable=True)
    channel.bind("q", "amq.topic", "a.b")
    channel.publish("q", b"one")
    channel.publish("a.b", b"two", exchange="amq.topic")
    assert channel.drain("q") == [b"one", b"two"]

    rest = {"username": "ann", "vhost": "/", "tags": "administrator"}
    assert service.asked("user") == [{"username": "ann", "password": "right"}]
    assert service.asked("vhost") == [{**rest, "ip": "127.0.0.1"}]
    queue, topic = (
        {**rest, "resource": "queue", "name": "q"},
        {**rest, "resource": "exchange", "name": "amq.topic"},
    )
    assert service.asked("resource") == [
        {**queue, "permission": "configure"},
        {**queue, "permission": "write"},
        {**topic, "permission": "read"},
        {**topic, "name": "amq.default", "permission": "write"},
        {**topic, "permission": "write"},
        {**queue, "permission": "read"},
    ]
    variables = {"routing_key": "a.b", "variable_map.username": "ann", "variable_map.vhost": "/"}
    assert service.asked("topic") == [
        {**topic, "resource": "topic", "permission": permission, **variables}
        for permission in ("read", "write")
    ]
    assert set(service.methods) == {"GET"}


def test_post_keeps_questions_out_of_the_url(service: FakeAccessService) -> None:
    with (
        InProcessBroker(config=config(service, http_method="post")) as broker,
        Connection(url(broker)) as connection,
    ):
        connection.channel().declare("q", durable=True)

    assert set(service.methods) == {"POST"}
    assert service.asked("user") == [{"username": "ann", "password": "right"}]


@pytest.mark.parametrize(
    ("denied", "operation"),
    [
        (("configure", "q2"), lambda channel: channel.declare("q2", durable=True)),
        (("write", "q"), lambda channel: channel.bind("q", "amq.topic", "k")),
        (("read", "q"), lambda channel: channel.get("q")),
        (("read", "q"), lambda channel: channel.consume("q")),
        (("write", "amq.default"), lambda channel: _confirmed(channel, "q", "")),
        (("write", "topic", "secret"), lambda channel: _confirmed(channel, "secret", "amq.topic")),
        (("read", "topic", "secret"), lambda channel: channel.bind("q", "amq.topic", "secret")),
        (("configure", "q"), lambda channel: channel.delete("q")),
    ],
)
def test_what_the_service_denies_is_refused(
    service: FakeAccessService, broker: InProcessBroker, denied: tuple[str, ...], operation: Any
) -> None:
    api_of(broker, "guest", "guest").put("queues/%2f/q", {"durable": True})
    service.denied.add(denied)
    with Connection(url(broker)) as connection, pytest.raises(Exception, match="ACCESS_REFUSED"):
        operation(connection.channel())


def _confirmed(channel: Channel, key: str, exchange: str) -> None:
    channel.confirm()
    channel.publish(key, b"", exchange=exchange)
    channel.settled(1)


def test_publishes_keep_their_order_while_decisions_are_pending(
    service: FakeAccessService, broker: InProcessBroker
) -> None:
    with Connection(url(broker)) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.bind("q", "amq.topic", "#")
        service.may_answer.clear()
        for number in range(50):
            channel.publish(f"key.{number % 7}", b"%d" % number, exchange="amq.topic")
            channel.publish("q", b"%d direct" % number)
        wait_until(lambda: service.questions[-1][1].get("permission") == "write", "a decision is pending")
        service.may_answer.set()
        expected = [text for number in range(50) for text in (b"%d" % number, b"%d direct" % number)]
        wait_until(lambda: channel.ready("q") == 100, "all are routed")

        assert channel.drain("q") == expected


def test_others_are_served_while_the_service_is_silent(
    service: FakeAccessService, broker: InProcessBroker
) -> None:
    service.may_answer.clear()
    with RawClient(broker.url) as peer:
        peer.greet()
        peer.send(peer.start_ok(response="\0ann\0right"), 0)
        wait_until(lambda: len(service.questions) == 1, "the service was asked")
        # The service's silence is that of one login; users of the broker are asked for at the service first, too.
        assert broker.call(lambda: True)
        assert not peer.has_input()
        service.may_answer.set()
        assert peer.has_input(PATIENCE)


def test_further_keys_of_a_publish_are_asked_for_before_it_is_routed(
    service: FakeAccessService, channel: Channel
) -> None:
    channel.declare("q", durable=True)
    channel.bind("q", "amq.topic", "cc.*")
    for number in range(5):
        channel.publish("other", b"%d" % number, exchange="amq.topic", headers={"CC": [f"cc.{number}"]})

    assert channel.drain("q") == [b"0", b"1", b"2", b"3", b"4"]
    keys = [each["routing_key"] for each in service.asked("topic") if each["permission"] == "write"]
    assert keys == ["other", *(f"cc.{number}" for number in range(5))]


def test_a_server_named_queue_is_asked_for_once(service: FakeAccessService, channel: Channel) -> None:
    name = channel.declare()

    assert [each["name"] for each in service.asked("resource")] == [name]


def test_answers_are_kept_and_asked_for_again_later(service: FakeAccessService) -> None:
    with (
        InProcessBroker(config=config(service, auth_cache_ttl=3_600_000)) as broker,
        pika.BlockingConnection(pika.URLParameters(url(broker) + "%2f?heartbeat=0")) as connection,
    ):
        channel = connection.channel()
        channel.queue_declare("q")
        channel.confirm_delivery()
        for _ in range(20):
            channel.basic_publish("", "q", b"")
        writes = [each for each in service.asked("resource") if each["permission"] == "write"]
        assert len(writes) == 1

        service.denied.add(("write", "amq.default"))
        pass_time(broker, 3601)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            publish_for_ever(channel)


def publish_for_ever(channel: Any) -> None:
    while True:
        channel.basic_publish("", "q", b"")


def test_a_wrong_password_is_refused_and_the_next_back_end_asked(
    service: FakeAccessService, broker: InProcessBroker
) -> None:
    assert api_of(broker).ask("GET", "whoami").body["name"] == "ann"
    assert api_of(broker, "ann", "wrong").ask("GET", "whoami").status == 401
    assert api_of(broker, "ann", "").ask("GET", "whoami").status == 401
    assert api_of(broker, "guest", "guest").ask("GET", "whoami").body["name"] == "guest"
    assert len(service.asked("user")) == 3
    assert api_of(broker).ask("GET", "whoami").status == 200
    assert len(service.asked("user")) == 3, "the login is kept for auth_cache_ttl"


def test_a_new_secret_of_a_user_of_the_service_keeps_the_connection(broker: InProcessBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(url(broker) + "%2f")) as connection:
        channel = connection.channel()
        connection.update_secret("anything", "renewal")

        assert channel.queue_declare("q").method.queue == "q"


def test_permissions_hold_in_the_http_api(service: FakeAccessService, broker: InProcessBroker) -> None:
    service.denied |= {("configure", "no"), ("vhost", "hidden")}
    guest = api_of(broker, "guest", "guest")
    guest.put("vhosts/hidden")
    ann = api_of(broker)

    assert ann.ask("PUT", "queues/%2f/yes", {}).status == 201
    assert ann.ask("PUT", "queues/%2f/no", {}).status == 401
    assert ann.ask("PUT", "queues/hidden/yes", {}).status == 401
    assert guest.ask("GET", "queues/%2f/no").status == 404


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 200),
        ("yes", 200),
        ("allowed", 200),
        ("deny", 200),
        ("deny because", 200),
        ("<html>allow</html>", 200),
        ("allow administrator", 500),
        ("allow administrator", 404),
        ("allow " + "x" * 100_000, 200),
    ],
)
def test_other_answers_let_nobody_in(
    service: FakeAccessService,
    broker: InProcessBroker,
    text: str,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service.texts["user"], service.status = text, status

    assert api_of(broker).ask("GET", "whoami").status == 401

    failures = [one for one in caplog.records if "event=access_service.failed" in one.getMessage()]
    assert len(failures) == (0 if text.startswith("deny") else 1)


def test_a_service_that_is_down_denies_and_is_logged_once(
    service: FakeAccessService, caplog: pytest.LogCaptureFixture
) -> None:
    down = dict.fromkeys(service.paths, "http://127.0.0.1:1/auth")
    with InProcessBroker(config=config(service, **down)) as broker:
        for _ in range(3):
            assert api_of(broker).ask("GET", "whoami").status == 401
        with Connection(broker.url) as connection:
            assert connection.channel().declare()

    found = [one.getMessage() for one in caplog.records if "event=access_service." in one.getMessage()]
    assert len(found) == 1
    assert "right" not in caplog.text


def test_a_slow_service_counts_as_denied(service: FakeAccessService) -> None:
    service.may_answer.clear()
    with InProcessBroker(config=config(service, request_timeout=100)) as broker:
        assert api_of(broker).ask("GET", "whoami").status == 401


def test_only_so_many_questions_are_asked_at_once(service: FakeAccessService) -> None:
    with InProcessBroker(config=config(service, connections=3)) as broker:
        service.may_answer.clear()
        peers = []
        for number in range(12):
            peer = RawClient(broker.url)
            peers.append(peer)
            peer.greet()
            peer.send(peer.start_ok(response=f"\0user{number}\0x"), 0)
        wait_until(lambda: len(service.questions) == 3, "three are asked")
        service.may_answer.set()
        wait_until(lambda: len(service.questions) == 12, "all are asked")
        for peer in peers:
            peer.abort()

    assert service.most_at_once == 3


def test_more_waiting_questions_than_there_may_be_are_denied(
    service: FakeAccessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_service, "MOST_WAITING", 0)
    with InProcessBroker(config=config(service)) as broker:
        assert api_of(broker).ask("GET", "whoami").status == 401
    assert service.questions == []


def test_one_back_end_logs_in_and_another_decides(service: FakeAccessService) -> None:
    with InProcessBroker(config=config(service, "http:internal", "internal")) as broker:
        assert api_of(broker).ask("GET", "whoami").status == 401, "the broker has no such user"
        guest = api_of(broker, "guest", "guest")
        guest.put("users/ann", {"password": "other", "tags": ""})
        guest.put("permissions/%2f/ann", {"configure": "^mine", "write": "", "read": ""})
        ann = api_of(broker)

        assert ann.get("whoami")["tags"] == ["administrator"]
        assert ann.ask("PUT", "queues/%2f/mine", {}).status == 201
        assert ann.ask("PUT", "queues/%2f/yours", {}).status == 401
        assert {kind for kind, _ in service.questions} == {"user"}


def test_users_of_the_broker_with_permissions_of_the_service(service: FakeAccessService) -> None:
    service.texts["user"] = "allow"
    service.denied.add(("configure", "no"))
    with InProcessBroker(config=config(service, "internal:http")) as broker:
        guest = api_of(broker, "guest", "guest")

        assert api_of(broker, "guest", "wrong").ask("GET", "whoami").status == 401
        assert service.questions == []
        assert guest.get("whoami")["tags"] == ["administrator"]
        assert guest.ask("PUT", "queues/%2f/yes", {}).status == 201
        assert guest.ask("PUT", "queues/%2f/no", {}).status == 401


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("user", "allow", Answer(True)),
        ("user", " ALLOW \n", Answer(True)),
        ("user", "allow administrator management", Answer(True, ("administrator", "management"))),
        ("user", "deny", Answer(False)),
        ("vhost", "Deny with a reason", Answer(False)),
        ("vhost", "allow", Answer(True)),
        ("vhost", "allow administrator", None),
        ("resource", "allowed", None),
        ("topic", "", None),
    ],
)
def test_answers_are_parsed(kind: str, text: str, answer: Answer | None) -> None:
    assert parse_answer(kind, text) == answer


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"auth_backends": ("ldap",)}, "auth_backends has 'ldap'; the back ends are internal, oauth2, http"),
        ({"auth_backends": ("http:ldap",)}, "auth_backends has 'http:ldap'"),
        ({"auth_backends": ()}, "auth_backends is empty"),
        ({"auth_backends": ("http", "http")}, "more than once"),
        ({"auth_backends": ("internal:oauth2",)}, "oauth2 decides on the permissions of its own tokens only"),
        ({"auth_cache_ttl": 10}, "auth_cache_ttl is 10; it must be between 1000 and 86400000"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="auth_") as error:
        BrokerConfig(**settings)

    assert text in str(error.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"user_path": "ftp://x"},
            "auth_http_user_path is 'ftp://x'; it must begin with http:// or https://",
        ),
        ({"request_timeout": 0}, "auth_http_request_timeout is 0; it must be between 1 and 60000"),
        ({"connections": 0}, "auth_http_connections is 0; it must be between 1 and 256"),
    ],
)
def test_a_wrong_setting_of_the_service_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="auth_http") as error:
        AccessServiceConfig(**settings)

    assert text in str(error.value)


def test_a_certificate_authority_that_cannot_be_read_is_named(
    service: FakeAccessService, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"auth_http_ca: cannot use .*missing"):
        InProcessBroker(config=config(service, ca=tmp_path / "missing")).start()


def test_passwords_are_never_logged(
    service: FakeAccessService, broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    service.status = 500
    assert api_of(broker, "ann", "hunter2").ask("GET", "whoami").status == 401

    assert "hunter2" not in caplog.text
