"""Changes of users, permissions and virtual hosts while connections are open, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from pamqp import commands

from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient, Refusal, made
from warren.broker import Broker, BrokerConfig
from warren.broker.access.access_control import Access
from warren.broker.model.operator_errors import ObjectAlreadyExists, ObjectNotFound, OperationRefused
from warren.broker.model.vhost.vhost_registry import VirtualHosts

Result = TypeVar("Result")


class Owner:
    """Operator of a broker, who makes changes on its event loop."""

    def __init__(self, inprocess: InProcessBroker) -> None:
        self.inprocess = inprocess

    @property
    def broker(self) -> Broker:
        assert self.inprocess.broker is not None
        return self.inprocess.broker

    @property
    def access(self) -> Access:
        return self.inprocess.call(lambda: self.broker.access)

    @property
    def vhosts(self) -> VirtualHosts:
        return self.inprocess.call(lambda: self.broker.virtual_hosts)

    def permit(self, user: str, *patterns: str, vhost: str = "/") -> None:
        self.inprocess.call(lambda: self.broker.access.permissions.set(user, vhost, *patterns))

    def peer(self, user: str = "guest", password: str = "guest", vhost: str = "") -> RawClient:
        return RawClient(f"amqp://{user}:{password}@127.0.0.1:{self.broker.port}/{vhost}")


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with InProcessBroker(tmp_path / "data") as broker:
        owner = Owner(broker)
        broker.call(lambda: owner.broker.access.users.add("ann", "secret"))
        owner.permit("ann", ".*", ".*", ".*")
        yield owner


@pytest.fixture
def ann(owner: Owner) -> Iterator[RawClient]:
    with owner.peer("ann", "secret") as peer:
        yield peer.connect().open()


def test_a_changed_permission_takes_effect_at_the_next_publish(owner: Owner, ann: RawClient) -> None:
    queue = ann.declare(exclusive=True)
    ann.publish("", queue)
    ann.sync()
    owner.permit("ann", ".*", "", ".*")
    ann.publish("", queue)
    assert ann.refusal().text.startswith("ACCESS_REFUSED - write access to exchange 'amq.default'")
    owner.permit("ann", ".*", ".*", ".*")
    ann.open(2)
    ann.publish("", queue, channel=2)
    ann.sync(2)
    assert ann.call(made(commands.Queue.Purge, queue=queue), 2, commands.Queue.PurgeOk).message_count == 2


def test_a_changed_topic_permission_takes_effect_at_the_next_publish(owner: Owner, ann: RawClient) -> None:
    ann.publish("amq.topic", "a.b")
    ann.sync()
    owner.inprocess.call(
        lambda: owner.broker.access.permissions.set_topic("ann", "/", "amq.topic", "^ann\\.", ".*")
    )
    ann.publish("amq.topic", "ann.b")
    ann.sync()
    # The further keys of CC count as well.
    ann.publish(
        "amq.topic", "ann.b", properties=commands.Basic.Properties(headers={"CC": ["ann.c", "other"]})
    )
    assert "write access to topic 'other' in exchange 'amq.topic'" in ann.refusal().text
    owner.inprocess.call(lambda: owner.broker.access.permissions.clear_topic("ann", "/"))
    ann.open(2)
    ann.publish("amq.topic", "a.b", channel=2)
    ann.sync(2)


def test_variables_of_a_topic_permission_are_escaped(owner: Owner) -> None:
    def make() -> None:
        access = owner.broker.access
        access.users.add("a.n+", "secret")
        access.permissions.set("a.n+", "/", ".*", ".*", ".*")
        access.permissions.set_topic("a.n+", "/", "amq.topic", "^{username}@{vhost}$", ".*")

    owner.inprocess.call(make)
    with owner.peer("a.n%2B", "secret") as peer:
        peer.connect().open()
        peer.publish("amq.topic", "a.n+@/")
        peer.sync()
        peer.publish("amq.topic", "axnn@/")
        assert peer.refusal().code == 403


def test_a_new_secret_cancels_consumers_without_read_permission(owner: Owner, ann: RawClient) -> None:
    queue = ann.declare(exclusive=True)
    ann.call(made(commands.Basic.Consume, queue=queue, consumer_tag="t"), 1, commands.Basic.ConsumeOk)
    replies = made(commands.Basic.Consume, queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True)
    ann.call(replies, 1, commands.Basic.ConsumeOk)
    owner.permit("ann", ".*", ".*", "")
    ann.send(made(commands.Connection.UpdateSecret, new_secret="x", reason="y"), 0)
    ann.expect(commands.Connection.UpdateSecretOk)
    assert ann.expect(commands.Basic.Cancel).consumer_tag == "t"
    ann.sync()
    owner.inprocess.call(lambda: owner.broker.access.permissions.clear("ann", "/"))
    ann.send(made(commands.Connection.UpdateSecret, new_secret="x", reason="y"), 0)
    text = "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"
    assert ann.refusal(0) == Refusal("connection", 530, text, (10, 70))


def test_the_connections_of_a_deleted_user_are_closed(owner: Owner, ann: RawClient) -> None:
    ann.sync()
    owner.inprocess.call(lambda: owner.broker.access.users.delete("ann"))
    text = "CONNECTION_FORCED - user 'ann' was deleted"
    assert ann.refusal(0) == Refusal("connection", 320, text, (0, 0))
    # A user of that name who comes later has nothing of the old one's.
    owner.inprocess.call(lambda: owner.broker.access.users.add("ann", "secret"))
    assert owner.access.permissions.all(user="ann") == []


def test_a_changed_limit_takes_effect_at_the_next_channel(owner: Owner, ann: RawClient) -> None:
    owner.inprocess.call(
        lambda: owner.broker.access.users.set_limits("ann", max_connections=None, max_channels=1)
    )
    found = ann.refused(commands.Channel.Open(), 2)
    assert (
        "number of channels opened for user 'ann' has reached the maximum allowed user limit of (1)"
        in found.text
    )


def test_a_changed_tag_takes_effect_at_the_next_publish(owner: Owner, ann: RawClient) -> None:
    properties = commands.Basic.Properties(user_id="somebody")
    owner.inprocess.call(lambda: owner.broker.access.users.set_tags("ann", ["impersonator"]))
    ann.publish("amq.fanout", "", b"", properties)
    ann.sync()
    owner.inprocess.call(lambda: owner.broker.access.users.set_tags("ann", []))
    ann.publish("amq.fanout", "", b"", properties)
    assert ann.refusal().code == 406


def test_a_changed_password_takes_effect_at_the_next_login(owner: Owner, ann: RawClient) -> None:
    owner.inprocess.call(lambda: owner.broker.access.users.change_password("ann", "new"))
    ann.sync()
    with owner.peer("ann", "secret") as peer:
        peer.greet()
        peer.send(peer.start_ok(), 0)
        assert peer.refusal(0).code == 403
    with owner.peer("ann", "new") as peer:
        peer.connect().open()


def test_deleting_a_virtual_host_deletes_its_contents_and_closes_its_connections(
    owner: Owner, ann: RawClient
) -> None:
    owner.inprocess.call(lambda: owner.broker.virtual_hosts.add("blue", description="sea", tags=("a", "b")))
    owner.permit("ann", ".*", ".*", ".*", vhost="blue")
    with owner.peer("ann", "secret", "blue") as peer:
        peer.connect().open()
        peer.declare("q", durable=True)
        peer.declare_exchange("x", durable=True)
        peer.bind("q", "x", "k")
        own = peer.declare(exclusive=True)
        peer.call(made(commands.Basic.Consume, queue=own), 1, commands.Basic.ConsumeOk)
        # The same names in another virtual host are others.
        assert ann.refused(made(commands.Queue.Declare, queue="q", passive=True)).code == 404
        owner.inprocess.restart()
    with owner.peer("ann", "secret", "blue") as peer:
        peer.connect().open()
        peer.publish("x", "k")
        peer.sync()
        assert peer.purge("q") == 1
        owner.inprocess.call(lambda: owner.broker.virtual_hosts.delete("blue"))
        assert peer.refusal(0) == Refusal(
            "connection", 320, "CONNECTION_FORCED - vhost 'blue' is deleted", (0, 0)
        )
    assert owner.access.permissions.all(vhost="blue") == []
    owner.inprocess.call(lambda: owner.broker.virtual_hosts.add("blue"))
    owner.permit("ann", ".*", ".*", ".*", vhost="blue")
    with owner.peer("ann", "secret", "blue") as peer:
        peer.connect().open()
        assert peer.refused(made(commands.Queue.Declare, queue="q", passive=True)).code == 404


def test_a_virtual_host_is_deleted_in_slices(owner: Owner) -> None:
    hosts = owner.broker.virtual_hosts

    def slice_by_slice() -> int:
        hosts.add("blue")
        for number in range(20):
            hosts.declarations_of("blue").declare_queue(f"q-{number}".encode(), True, False, False, b"", None)
        hosts.bulk_work.slice_seconds = 0
        before = hosts.bulk_work.slices
        hosts.delete("blue")
        with pytest.raises(OperationRefused, match="is being deleted"):
            hosts.add("blue")
        return before

    before = owner.inprocess.call(slice_by_slice)
    wait_until(lambda: hosts.deletion_lane("blue") is None, "the virtual host is deleted")
    assert hosts.bulk_work.slices - before >= 20
    owner.inprocess.call(lambda: hosts.add("blue"))
    owner.inprocess.restart()
    assert not owner.inprocess.call(lambda: owner.broker.virtual_hosts.declarations_of("blue").vhost.queues)


def test_a_virtual_host_leaves_the_definitions_by_one_change(owner: Owner) -> None:
    """A crash, while its queues are deleted in slices, leaves all of it or nothing."""
    hosts = owner.broker.virtual_hosts
    definitions = hosts._definitions
    assert definitions is not None

    def delete() -> int:
        topology = hosts.add("blue")
        exchange = topology.declare_exchange(b"x", b"fanout", True, False, False, b"")
        for number in range(20):
            queue = topology.declare_queue(f"q-{number}".encode(), True, False, False, b"", None)
            topology.bind(exchange, queue, b"", b"")
        hosts.bulk_work.slice_seconds = 0
        before = definitions.submitted
        hosts.delete("blue")
        return before

    before = owner.inprocess.call(delete)
    wait_until(lambda: hosts.deletion_lane("blue") is None, "the virtual host is deleted")
    assert owner.inprocess.call(lambda: definitions.submitted) - before == 1


def test_a_protected_virtual_host_is_not_deleted(owner: Owner) -> None:
    def attempt() -> None:
        vhosts = owner.broker.virtual_hosts
        vhosts.add("blue", protected=True)
        with pytest.raises(OperationRefused, match="protected from deletion"):
            vhosts.delete("blue")
        vhosts.update("blue", protected=False)
        vhosts.delete("blue")

    owner.inprocess.call(attempt)


def test_the_default_queue_type_of_a_virtual_host(owner: Owner) -> None:
    owner.inprocess.call(lambda: owner.broker.virtual_hosts.add("q", default_queue_type="quorum"))
    owner.permit("ann", ".*", ".*", ".*", vhost="q")
    with owner.peer("ann", "secret", "q") as peer:
        peer.connect().open()
        peer.declare("safe", durable=True)
        peer.declare("safe", durable=True, arguments={"x-queue-type": "quorum"})
        # What cannot be a quorum queue is a classic one.
        peer.declare("own", exclusive=True)
        found = peer.refused(
            made(commands.Queue.Declare, queue="safe", durable=True, arguments={"x-queue-type": "classic"})
        )
        assert "inequivalent arg 'x-queue-type' for queue 'safe' in vhost 'q'" in found.text


def test_users_permissions_and_virtual_hosts_survive_a_restart(owner: Owner) -> None:
    def make() -> None:
        access, vhosts = owner.broker.access, owner.broker.virtual_hosts
        vhosts.add("blue", description="sea", tags=("a", "b"), default_queue_type="classic", protected=True)
        vhosts.set_limits("blue", max_connections=5, max_queues=-1)
        access.users.set_tags("ann", ["monitoring", "management"])
        access.users.set_limits("ann", max_connections=None, max_channels=0)
        access.permissions.set("ann", "blue", "c", "w", "r")
        access.permissions.set_topic("ann", "blue", "x", "w", "r")
        access.permissions.clear("ann", "/")
        access.users.delete("guest")

    def read() -> object:
        access, vhosts = owner.broker.access, owner.broker.virtual_hosts
        return (
            access.users.all(),
            access.permissions.all(),
            access.permissions.topics(),
            vhosts.all(),
        )

    owner.inprocess.call(make)
    before = owner.inprocess.call(read)
    owner.inprocess.restart()
    # The first user does not come back.
    assert owner.inprocess.call(read) == before
    owner.inprocess.crash()
    assert owner.inprocess.call(read) == before


def test_invalid_changes_are_refused_and_change_nothing(owner: Owner) -> None:
    def attempt() -> None:
        users, permissions = owner.broker.access.users, owner.broker.access.permissions
        vhosts = owner.broker.virtual_hosts
        before = (users.all(), permissions.all(), vhosts.all())
        for kind, attempt in (
            (ObjectAlreadyExists, lambda: users.add("ann", "x")),
            (OperationRefused, lambda: users.add("", "x")),
            (ObjectNotFound, lambda: users.delete("bob")),
            (ObjectNotFound, lambda: users.set_tags("bob", ())),
            (OperationRefused, lambda: users.set_tags("ann", ["a,b"])),
            (ObjectNotFound, lambda: permissions.set("bob", "/", "", "", "")),
            (ObjectNotFound, lambda: permissions.set("ann", "nope", "", "", "")),
            (ObjectNotFound, lambda: permissions.clear("ann", "nope")),
            (OperationRefused, lambda: permissions.set("ann", "/", "(", "", "")),
            (OperationRefused, lambda: permissions.set_topic("ann", "/", "x", "[", "")),
            (ObjectAlreadyExists, lambda: vhosts.add("/")),
            (OperationRefused, lambda: vhosts.add("v", default_queue_type="nope")),
            (ObjectNotFound, lambda: vhosts.delete("nope")),
            (ObjectNotFound, lambda: vhosts.set_limits("nope", max_connections=1, max_queues=1)),
        ):
            with pytest.raises(kind) as caught:
                attempt()
            assert "\n" not in str(caught.value)
        assert (users.all(), permissions.all(), vhosts.all()) == before

    owner.inprocess.call(attempt)


def test_the_number_of_connections_of_a_broker_is_limited() -> None:
    with InProcessBroker(config=BrokerConfig(max_connections=1)) as broker, RawClient(broker.url) as first:
        first.connect()
        with RawClient(broker.url) as second:
            second.log_in()
            second.tune()
            found = second.refused(made(commands.Connection.Open, virtual_host="/"), 0)
            text = "NOT_ALLOWED - connection refused: node connection limit (1) is reached"
            assert found == Refusal("connection", 530, text, (10, 40))
