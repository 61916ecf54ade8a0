"""Arguments of classic and quorum queues: valid values, and RabbitMQ's error texts for invalid ones."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands

from tests.support.broker_behaviour import Behaviour
from tests.support.queue_arguments import (
    AUTO_DELETE,
    DURABLE,
    EXCLUSIVE,
    QUORUM,
    TTL,
    Field,
    declare,
    failed,
    integer,
    long,
    text,
)
from tests.support.raw_client import RawClient, Refusal, made

# -- arguments


@pytest.mark.parametrize("which", [TTL, "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (integer(-1), "{value_negative,-1}"),
        (text("5"), '"expected integer, got longstr"'),
        (b"t\1", '"expected integer, got bool"'),
        (b"d" + struct.pack(">d", 5.0), '"expected integer, got double"'),
        (b"b\5", None),
        (integer(100), None),
    ],
)
def test_a_limit_has_to_be_an_integer(
    peer: RawClient, name: str, which: str, value: bytes, reason: str | None
) -> None:
    found = declare(peer, name, (which, value))
    if reason is None:
        assert found == name
    else:
        assert found == failed(406, f"invalid arg '{which}' for queue '{name}' in vhost '/': {reason}")


@pytest.mark.parametrize(
    ("which", "value", "reason"),
    [
        (TTL, long(315_360_000_001), "{value_too_large,315360000001}"),
        ("x-expires", long(315_360_000_001), "{value_too_large,315360000001}"),
        ("x-expires", integer(0), "{value_zero,0}"),
        ("x-max-priority", integer(256), "{max_value_exceeded,256}"),
        ("x-overflow", text("foo"), "invalid_overflow"),
        ("x-overflow", integer(5), "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", integer(5), "{unacceptable_type,signedint}"),
        ("x-queue-mode", text("foo"), "\"unsupported queue mode 'foo'\""),
        ("x-queue-mode", integer(1), "{unacceptable_type,signedint}"),
        ("x-queue-version", integer(3), "\"unsupported queue version '3'\""),
        ("x-queue-version", text("2"), '"expected integer, got longstr"'),
        ("x-single-active-consumer", text("true"), "{unacceptable_type,longstr}"),
        ("x-max-priority", b"b\xff", "{value_negative,-1}"),
        ("x-queue-type", text("foo"), "\"unsupported queue type 'foo'\""),
        ("x-queue-type", integer(5), "{unacceptable_type,signedint}"),
    ],
)
def test_invalid_values_are_refused(
    peer: RawClient, server: Behaviour, name: str, which: str, value: bytes, reason: str
) -> None:
    if which == "x-queue-mode" and server.is_4_3 and not server.is_warren:
        # Lazy queues are gone, and the argument is not looked at.
        assert declare(peer, name, (which, value)) == name
        return
    expected = failed(406, f"invalid arg '{which}' for queue '{name}' in vhost '/': {reason}")
    assert declare(peer, name, (which, value)) == expected
    # Nothing was made.
    assert peer.refused(made(commands.Queue.Declare, queue=name, passive=True)).code == 404


def test_the_error_names_the_first_invalid_argument_in_rabbitmqs_order(peer: RawClient, name: str) -> None:
    described = f"queue '{name}' in vhost '/'"
    found = declare(peer, name, (TTL, integer(-1)), ("x-expires", integer(0)))
    assert found == failed(406, f"invalid arg 'x-expires' for {described}: {{value_zero,0}}")
    found = declare(peer, name, ("x-dead-letter-routing-key", text("k")), (TTL, integer(-1)))
    assert found == failed(406, f"invalid arg '{TTL}' for {described}: {{value_negative,-1}}")


def test_a_dead_letter_exchange_has_to_be_a_string(peer: RawClient, name: str) -> None:
    found = declare(peer, name, ("x-dead-letter-exchange", integer(5)))
    assert found == failed(
        406, f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '/'"
    )


@pytest.mark.parametrize("value", [b"B\5", b"s\0\5", b"u\0\5", b"i\0\0\0\5", b"L" + bytes(7) + b"\5"])
def test_integers_may_be_of_any_width(peer: RawClient, name: str, value: bytes) -> None:
    assert declare(peer, name, (TTL, value)) == name
    assert declare(peer, name, (TTL, integer(5))) == name


@pytest.mark.parametrize(
    "field",
    [
        ("x-queue-mode", text("lazy")),
        ("x-queue-mode", text("default")),
        ("x-queue-version", integer(2)),
        ("x-overflow", text("reject-publish-dlx")),
        ("x-ha-policy", text("all")),
        ("x-queue-master-locator", text("min-masters")),
        ("x-consumer-timeout", integer(5)),
        ("x-nobody-knows", integer(5)),
    ],
)
def test_arguments_of_a_classic_queue(peer: RawClient, server: Behaviour, name: str, field: Field) -> None:
    found = declare(peer, name, field)
    if server.is_4_3 and not server.is_warren:
        # Warren's broker refuses them with `strict`.
        if field[0] == "x-queue-master-locator":
            assert isinstance(found, Refusal)
            assert (found.code, found.text.splitlines()[0]) == (
                541,
                "INTERNAL_ERROR - Feature `queue_master_locator` is deprecated.",
            )
            return
        if field[0] == "x-consumer-timeout":
            described = f"'{field[0]}' for queue '{name}' in vhost '/' of queue type rabbit_classic_queue"
            assert found == failed(406, f"invalid arg {described}")
            return
    assert found == name


def test_a_redeclaration_cannot_change_the_queue_mode(peer: RawClient, name: str) -> None:
    assert declare(peer, name, ("x-queue-mode", text("lazy"))) == name
    inequivalent = f"inequivalent arg 'x-queue-mode' for queue '{name}' in vhost '/': received"
    current = "none but current is the value 'lazy' of type 'longstr'"
    assert declare(peer, name) == failed(406, f"{inequivalent} {current}")
    found = declare(peer, name, ("x-queue-mode", text("default")))
    assert found == failed(406, f"{inequivalent} 'default' but current is 'lazy'")
    # What is no argument of its type may differ.
    assert declare(peer, name, ("x-queue-mode", text("lazy")), ("x-ha-policy", text("all"))) == name


def test_values_are_checked_before_arguments_of_other_types(peer: RawClient, name: str) -> None:
    """Of several arguments of other types, the error names the first."""
    described = f"queue '{name}' in vhost '/'"
    found = declare(peer, name, ("x-max-age", text("5")), (TTL, integer(-1)))
    assert found == failed(406, f"invalid arg '{TTL}' for {described}: {{value_negative,-1}}")
    found = declare(peer, name, ("x-max-age", text("5")), ("x-max-in-memory-length", integer(5)))
    assert found == failed(406, f"invalid arg 'x-max-age' for {described} of queue type rabbit_classic_queue")


@pytest.mark.parametrize("which", ["x-max-age", "x-quorum-initial-group-size"])
def test_arguments_of_another_queue_type_are_refused(peer: RawClient, name: str, which: str) -> None:
    found = declare(peer, name, (which, integer(5)))
    assert found == failed(
        406, f"invalid arg '{which}' for queue '{name}' in vhost '/' of queue type rabbit_classic_queue"
    )


@pytest.mark.parametrize(
    ("fields", "further"),
    [
        ([], ("x-quorum-initial-group-size", integer(3))),
        ([], ("x-dead-letter-strategy", text("at-most-once"))),
        ([], ("x-max-in-memory-length", integer(4))),
        ([QUORUM], ("x-max-priority", integer(3))),
        ([QUORUM], ("x-queue-mode", text("lazy"))),
        ([QUORUM], ("x-queue-version", integer(2))),
    ],
)
def test_a_redeclaration_may_have_arguments_of_another_queue_type(
    peer: RawClient, name: str, fields: list[Field], further: Field
) -> None:
    assert declare(peer, name, *fields, flags=DURABLE) == name
    assert declare(peer, name, *fields, further, flags=DURABLE) == name
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)


def test_classic_queues_can_have_a_delivery_limit(peer: RawClient, name: str, server: Behaviour) -> None:
    """Unlike in RabbitMQ, whose classic queues have no delivery limit."""
    found = declare(peer, name, ("x-delivery-limit", integer(5)))
    if server.is_warren:
        assert found == name
    else:
        assert found == failed(
            406,
            f"invalid arg 'x-delivery-limit' for queue '{name}' in vhost '/' of queue type rabbit_classic_queue",
        )


# -- quorum queues: https://www.rabbitmq.com/docs/quorum-queues#feature-matrix


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (0, "non-durable"),
        (DURABLE | EXCLUSIVE, "exclusive-owner"),
        (EXCLUSIVE, "exclusive-owner"),
        (DURABLE | AUTO_DELETE, "auto-delete"),
    ],
)
def test_a_quorum_queue_cannot_be_transient_exclusive_or_auto_delete(
    peer: RawClient, name: str, flags: int, what: str
) -> None:
    found = declare(peer, name, QUORUM, flags=flags)
    assert found == failed(406, f"invalid property '{what}' for queue '{name}' in vhost '/'")


def test_a_quorum_queue_cannot_be_server_named(peer: RawClient) -> None:
    text = "Cannot declare a server-named queue for type rabbit_quorum_queue"
    assert declare(peer, "", QUORUM, flags=DURABLE) == failed(406, text)
    text = "queue name 'amq.q' contains reserved prefix 'amq.*'"
    assert declare(peer, "amq.q", QUORUM, flags=DURABLE) == failed(403, text)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (("x-max-priority", integer(5)), " of queue type rabbit_quorum_queue"),
        (("x-queue-mode", text("lazy")), " of queue type rabbit_quorum_queue"),
        (("x-queue-version", integer(2)), " of queue type rabbit_quorum_queue"),
        (("x-queue-master-locator", text("foo")), " of queue type rabbit_quorum_queue"),
        (("x-dead-letter-strategy", text("foo")), ": invalid_dlx_strategy"),
        (("x-dead-letter-strategy", integer(1)), ": {unacceptable_type,signedint}"),
        (("x-quorum-initial-group-size", integer(0)), ": {value_zero,0}"),
        (("x-quorum-initial-group-size", text("1")), ': "expected integer, got longstr"'),
        (("x-max-in-memory-length", integer(-1)), ": {value_negative,-1}"),
        (("x-queue-leader-locator", text("foo")), ": invalid_queue_locator_arg"),
        (("x-queue-leader-locator", text("balanced")), None),
        (("x-overflow", text("foo")), ": invalid_overflow"),
        (("x-overflow", text("reject-publish-dlx")), None),
        (("x-delayed-retry-type", text("all")), None),
        (("x-quorum-initial-group-size", integer(1)), None),
        (("x-ha-policy", text("all")), None),
        (("x-delivery-limit", integer(-1)), None),
        (("x-dead-letter-strategy", text("at-least-once")), None),
        (("x-expires", integer(60_000)), None),
        (("x-unknown", integer(1)), None),
    ],
)
def test_arguments_of_a_quorum_queue(peer: RawClient, name: str, field: Field, reason: str | None) -> None:
    found = declare(peer, name, QUORUM, field, flags=DURABLE)
    if reason is not None:
        assert found == failed(406, f"invalid arg '{field[0]}' for queue '{name}' in vhost '/'{reason}")
        return
    assert found == name
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)


def test_a_redeclaration_cannot_change_the_queue_type(peer: RawClient, server: Behaviour, name: str) -> None:
    assert declare(peer, name, QUORUM, flags=DURABLE) == name
    inequivalent = f"inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': received"
    default = "none but current is the value 'quorum' of type 'longstr'"
    if server.is_4_3:
        default = "'classic' but current is 'quorum'"
    assert declare(peer, name, flags=DURABLE) == failed(406, f"{inequivalent} {default}")
    assert declare(peer, name, ("x-queue-type", text("classic")), flags=DURABLE) == failed(
        406, f"{inequivalent} 'classic' but current is 'quorum'"
    )
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)
