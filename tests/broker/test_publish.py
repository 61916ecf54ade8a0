"""Publishes that cannot be carried out. Confirms have their own tests."""

from __future__ import annotations

from pamqp import commands

from tests.support.raw_client import RawClient, Refusal, made

# -- returns


def test_an_unroutable_mandatory_message_is_returned(peer: RawClient, name: str) -> None:
    properties = commands.Basic.Properties(message_id="m1", headers={"n": 1}, delivery_mode=2)
    for body in (b"", b"x", b"y" * 300_000):
        peer.publish("amq.topic", name, body, properties, mandatory=True)
        returned = peer.receive_message(commands.Basic.Return)
        assert dict(returned.carrier) == {
            "reply_code": 312,
            "reply_text": "NO_ROUTE",
            "exchange": "amq.topic",
            "routing_key": name,
        }
        assert (returned.body, returned.properties.message_id, returned.properties.headers) == (
            body,
            "m1",
            {"n": 1},
        )
    # Without mandatory it is dropped in silence.
    peer.publish("amq.topic", name, b"x")
    peer.sync()


# -- refusals


def test_a_publish_to_a_missing_exchange_is_refused(peer: RawClient, name: str) -> None:
    peer.publish(name, "k", b"x")
    expected = Refusal("channel", 404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", (60, 40))
    assert peer.refusal() == expected
    peer.open()
    # An exchange's name is taken as it is: line ends are not cut from it.
    peer.publish("amq.direct\n", "k", b"x")
    assert peer.refusal()[:2] == ("channel", 404)


def test_a_publish_to_an_internal_exchange_is_refused(peer: RawClient, name: str) -> None:
    queue = peer.declare(exclusive=True)
    peer.declare_exchange(name, "fanout", internal=True)
    peer.declare_exchange(f"{name}-source", "fanout", auto_delete=True)
    peer.bind_exchange(name, f"{name}-source")
    peer.bind(queue, name)
    peer.publish(name, "k", b"x")
    text = f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'"
    assert peer.refusal() == Refusal("channel", 403, text, (60, 40))
    peer.open()
    peer.publish(f"{name}-source", "k", b"x")
    assert peer.purge(queue) == 1
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)


def test_a_user_id_must_be_the_publishers_own(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    peer.publish("", name, b"x", commands.Basic.Properties(user_id="guest"))
    assert peer.purge(name) == 1
    peer.publish("", name, b"x", commands.Basic.Properties(user_id="eve"))
    text = "PRECONDITION_FAILED - user_id property set to 'eve' but authenticated user was 'guest'"
    assert peer.refusal() == Refusal("channel", 406, text, (60, 40))
