"""Exchanges and bindings: declaration, deletion and routing."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import commands
from pamqp.common import FieldTable

from tests.broker.conftest import RawConnect
from tests.support.broker_behaviour import Behaviour
from tests.support.frames import frame as raw_frame
from tests.support.frames import method as raw_method
from tests.support.raw_client import RawClient, Refusal, made
from tests.support.tiers import examples
from warren.broker.model.exchange.topic import TopicTrie
from warren.wire import field_tables

DEFAULT_REFUSED = "ACCESS_REFUSED - operation not permitted on the default exchange"


def exchange(name: str, kind: str = "direct", **fields: object) -> commands.Exchange.Declare:
    return made(commands.Exchange.Declare, exchange=name, exchange_type=kind, **fields)


def refused(code: int, text: str, method: tuple[int, int]) -> Refusal:
    return Refusal("channel", code, text, method)


# -- declaring


def test_declare_and_passive_declare(peer: RawClient, name: str) -> None:
    passive = exchange(name, passive=True)
    assert peer.refused(passive) == refused(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", (40, 10))
    peer.open()
    for _ in range(2):
        peer.declare_exchange(name, "topic", auto_delete=True, internal=True)
    peer.call(passive, 1, commands.Exchange.DeclareOk)
    # Who only looks need not know the type.
    peer.call(exchange(name, "nonsense", passive=True), 1, commands.Exchange.DeclareOk)
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)


@pytest.mark.parametrize(
    ("fields", "which", "received", "current"),
    [
        ({"kind": "fanout", "durable": True}, "type", "fanout", "direct"),
        ({"durable": True, "auto_delete": True}, "durable", "true", "false"),
        ({"auto_delete": True, "internal": True}, "auto_delete", "true", "false"),
        ({"internal": True, "arguments": {"alternate-exchange": "x"}}, "internal", "true", "false"),
    ],
)
def test_a_redeclaration_needs_the_same_properties(
    peer: RawClient, name: str, fields: dict[str, Any], which: str, received: str, current: str
) -> None:
    peer.declare_exchange(name)
    text = f"inequivalent arg '{which}' for exchange '{name}' in vhost '/': received '{received}' but current is '{current}'"
    assert peer.refused(exchange(name, **fields)) == refused(406, f"PRECONDITION_FAILED - {text}", (40, 10))
    peer.open()
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)


def test_a_redeclaration_compares_the_alternate_exchange_and_no_other_argument(
    peer: RawClient, name: str
) -> None:
    peer.declare_exchange(name, arguments={"alternate-exchange": "a", "x-other": 1}, auto_delete=True)
    peer.declare_exchange(name, arguments={"alternate-exchange": "a", "x-other": 2}, auto_delete=True)
    begin = f"PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange '{name}' in vhost '/': received"
    found = peer.refused(exchange(name, arguments={"alternate-exchange": "b"}, auto_delete=True))
    assert found == refused(406, f"{begin} 'b' but current is 'a'", (40, 10))
    peer.open()
    found = peer.refused(exchange(name, auto_delete=True))
    assert found == refused(406, f"{begin} none but current is the value 'a' of type 'longstr'", (40, 10))
    peer.open()
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)


def test_an_alternate_exchange_has_to_be_a_string(peer: RawClient, name: str) -> None:
    found = peer.refused(exchange(name, arguments={"alternate-exchange": True}))
    text = f"PRECONDITION_FAILED - invalid type 'bool' for arg 'alternate-exchange' in exchange '{name}' in vhost '/'"
    assert found == refused(406, text, (40, 10))


@pytest.mark.parametrize("which", ["", "amq.direct", "new"])
def test_an_unknown_type_is_refused_before_all_else(peer: RawClient, server: Behaviour, which: str) -> None:
    assert peer.refused(exchange(which, "x-foo"))[:3] == server.unknown_exchange_type("x-foo")


@pytest.mark.parametrize(
    ("command", "method"),
    [
        (exchange("", durable=True), (40, 10)),
        (exchange("", passive=True), (40, 10)),
        (made(commands.Exchange.Delete), (40, 20)),
        (made(commands.Queue.Bind, queue="missing"), (50, 20)),
        (made(commands.Queue.Unbind, queue="missing"), (50, 50)),
        (made(commands.Exchange.Bind, destination="missing"), (40, 30)),
        (made(commands.Exchange.Bind, source="missing"), (40, 30)),
        (made(commands.Exchange.Unbind, destination="missing"), (40, 40)),
        (made(commands.Exchange.Unbind, source="missing"), (40, 40)),
    ],
)
def test_the_default_exchange_cannot_be_changed(
    peer: RawClient, command: Any, method: tuple[int, int]
) -> None:
    assert peer.refused(command) == refused(403, DEFAULT_REFUSED, method)


@pytest.mark.parametrize(
    ("name", "kind"), [("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic")]
)
def test_predeclared_exchanges(peer: RawClient, name: str, kind: str) -> None:
    peer.declare_exchange(name, kind, durable=True)
    text = f"ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed"
    assert peer.refused(made(commands.Exchange.Delete, exchange=name)) == refused(403, text, (40, 20))
    peer.open()
    text = "ACCESS_REFUSED - exchange name 'amq.new' contains reserved prefix 'amq.*'"
    assert peer.refused(exchange("amq.new")) == refused(403, text, (40, 10))


# -- deleting


def test_delete_with_if_unused(peer: RawClient, name: str) -> None:
    delete = made(commands.Exchange.Delete, exchange=name, if_unused=True)
    peer.call(delete, 1, commands.Exchange.DeleteOk)
    peer.declare_exchange(name)
    queue = peer.declare(exclusive=True)
    peer.bind(queue, name, "k")
    found = peer.refused(delete)
    assert found == refused(406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use", (40, 20))
    peer.open()
    # Bindings to it do not count as use.
    other = f"{name}-destination"
    peer.declare_exchange(other)
    peer.bind_exchange(other, name, "k")
    peer.call(made(commands.Exchange.Delete, exchange=other, if_unused=True), 1, commands.Exchange.DeleteOk)
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)
    assert peer.refused(exchange(name, passive=True)).code == 404
    # Its bindings went with it.
    peer.open()
    peer.declare_exchange(name, auto_delete=True)
    peer.publish(name, "k", b"x")
    assert peer.purge(queue) == 0
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)


def test_an_auto_delete_exchange_is_deleted_with_its_last_binding(peer: RawClient, name: str) -> None:
    queue = peer.declare(exclusive=True)
    peer.declare_exchange(name, auto_delete=True)
    peer.declare_exchange(f"{name}-2", "fanout", auto_delete=True)
    peer.bind(queue, name, "a")
    peer.bind_exchange(f"{name}-2", name, "b")
    peer.bind(queue, f"{name}-2")
    unbind = made(commands.Queue.Unbind, queue=queue, exchange=name, routing_key="a")
    peer.call(unbind, 1, commands.Queue.UnbindOk)
    peer.call(exchange(name, passive=True), 1, commands.Exchange.DeclareOk)
    # The queue takes the second with it, and that the first.
    peer.call(made(commands.Queue.Delete, queue=queue), 1, commands.Queue.DeleteOk)
    for gone in (name, f"{name}-2"):
        assert peer.refused(exchange(gone, passive=True)).code == 404
        peer.open()


def test_auto_delete_exchanges_in_a_cycle(peer: RawClient, name: str) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    for each in names:
        peer.declare_exchange(each, "fanout", auto_delete=True)
    for source, destination in zip(names, names[1:] + names[:1], strict=True):
        peer.bind_exchange(destination, source)
    peer.bind_exchange(names[0], names[0])
    peer.call(made(commands.Exchange.Delete, exchange=names[1]), 1, commands.Exchange.DeleteOk)
    # The third has lost what led to it, which is nothing to it.
    peer.call(exchange(names[2], passive=True), 1, commands.Exchange.DeclareOk)
    unbind = made(commands.Exchange.Unbind, destination=names[0], source=names[0])
    peer.call(unbind, 1, commands.Exchange.UnbindOk)
    for each in names:
        assert peer.refused(exchange(each, passive=True)).code == 404
        peer.open()


# -- bindings


def test_bind_needs_an_existing_exchange_and_queue(peer: RawClient, name: str) -> None:
    queue = peer.declare(exclusive=True)
    for command, missing, method in (
        (made(commands.Queue.Bind, queue="gone", exchange="nox"), "exchange 'nox'", (50, 20)),
        (made(commands.Queue.Bind, queue="gone", exchange="amq.direct"), "queue 'gone'", (50, 20)),
        (made(commands.Queue.Bind, queue=queue, exchange="nox"), "exchange 'nox'", (50, 20)),
        (made(commands.Exchange.Bind, source="nox", destination="nod"), "exchange 'nox'", (40, 30)),
        (made(commands.Exchange.Bind, source="amq.direct", destination="nod"), "exchange 'nod'", (40, 30)),
    ):
        assert peer.refused(command) == refused(404, f"NOT_FOUND - no {missing} in vhost '/'", method)
        peer.open()


def test_unbind_of_a_missing_binding_is_no_error(peer: RawClient, name: str) -> None:
    queue = peer.declare(exclusive=True)
    for ours, source in (("gone", "amq.direct"), (queue, "nox"), (queue, "amq.direct"), ("gone", "nox")):
        unbind = made(commands.Queue.Unbind, queue=ours, exchange=source, routing_key="k")
        peer.call(unbind, 1, commands.Queue.UnbindOk)
    unbind_exchange = made(commands.Exchange.Unbind, destination="nod", source="nox", routing_key="k")
    peer.call(unbind_exchange, 1, commands.Exchange.UnbindOk)


def test_a_repeated_binding_counts_once(peer: RawClient, name: str) -> None:
    queue = peer.declare(exclusive=True)
    peer.declare_exchange(name, auto_delete=True)
    for _ in range(3):
        peer.bind(queue, name, "k")
    # With other arguments it is another binding; the message still arrives once.
    peer.bind(queue, name, "k", arguments={"x": 1})
    peer.publish(name, "k", b"x")
    assert peer.purge(queue) == 1
    unbind = made(commands.Queue.Unbind, queue=queue, exchange=name, routing_key="k")
    peer.call(unbind, 1, commands.Queue.UnbindOk)
    peer.publish(name, "k", b"x")
    assert peer.purge(queue) == 1
    unbind = made(commands.Queue.Unbind, queue=queue, exchange=name, routing_key="k", arguments={"x": 1})
    peer.call(unbind, 1, commands.Queue.UnbindOk)
    assert peer.refused(exchange(name, passive=True)).code == 404


def test_unbind_removes_one_binding_only(peer: RawClient, name: str) -> None:
    """A queue with several keys, and a key with several queues."""
    first, second = peer.declare(exclusive=True), peer.declare(exclusive=True)
    for kind in ("direct", "topic", "fanout"):
        source = f"{name}-{kind}"
        peer.declare_exchange(source, kind, auto_delete=True)
        for queue in (first, second):
            for key in ("k", "l"):
                peer.bind(queue, source, key)
        unbind = made(commands.Queue.Unbind, queue=first, exchange=source, routing_key="k")
        peer.call(unbind, 1, commands.Queue.UnbindOk)
        for key in ("k", "l", "m"):
            peer.publish(source, key, b"x")
        expected = (3, 3) if kind == "fanout" else (1, 2)
        assert (peer.purge(first), peer.purge(second)) == expected


def test_the_order_of_binding_arguments_does_not_matter(peer: RawClient, name: str) -> None:
    """Clients whose tables are hash maps, such as Go's, send the arguments of a binding in any order."""
    queue = peer.declare(exclusive=True)
    peer.declare_exchange(name, "headers", auto_delete=True)
    arguments: dict[str, field_tables.Value] = {"x-match": "all", "b": 2, "a": 1, "x-ab": None}
    orders = list(itertools.permutations(arguments.items()))
    for order in orders:
        peer.send_bytes(binding(queue, name, dict(order), (50, 20)))
        peer.expect(commands.Queue.BindOk)
    headers: FieldTable = {"a": 1, "b": 2}
    peer.publish(name, "", b"x", commands.Basic.Properties(headers=headers))
    assert peer.purge(queue) == 1
    peer.send_bytes(binding(queue, name, dict(orders[-1]), (50, 50)))
    peer.expect(commands.Queue.UnbindOk)
    # It was the only binding of the exchange, which is deleted with it.
    assert peer.refused(exchange(name, passive=True)).code == 404


def binding(
    queue: str, source: str, arguments: dict[str, field_tables.Value], method: tuple[int, int]
) -> bytes:
    """Return the frame of a queue.bind or queue.unbind whose arguments are in their order, which pamqp would sort."""
    table = field_tables.encode(arguments)
    names = b"".join(bytes([len(text)]) + text.encode() for text in (queue, source, ""))
    no_wait = b"\0" if method == (50, 20) else b""
    return raw_method(1, method, b"\0\0" + names + no_wait + struct.pack(">I", len(table)) + table)


def test_malformed_binding_arguments_close_the_connection(peer: RawClient, server: Behaviour) -> None:
    queue = peer.declare(exclusive=True)
    arguments = (
        b"\0\0"
        + bytes([len(queue)])
        + queue.encode()
        + b"\x0aamq.direct\1k\0"
        + struct.pack(">I", 3)
        + b"\1aZ"
    )
    peer.send_bytes(raw_frame(1, 1, struct.pack(">HH", 50, 20) + arguments))
    if server.explains_crashes:
        text = "SYNTAX_ERROR - unknown field type 'Z'"
        assert peer.refusal() == Refusal("connection", 502, text, (50, 20))
    assert peer.at_end()


# -- routing


def test_the_default_exchange_routes_to_every_queue_by_name(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    peer.publish("", name, b"x")
    peer.publish("", f"{name}.other", b"x")
    assert peer.purge(name) == 1


def test_exchange_to_exchange_bindings(peer: RawClient, name: str) -> None:
    """https://www.rabbitmq.com/docs/e2e: in a circle too, and each queue gets one copy."""
    queue = peer.declare(exclusive=True)
    names = [f"{name}-{number}" for number in range(4)]
    for each, kind in zip(names, ("topic", "direct", "fanout", "topic"), strict=True):
        peer.declare_exchange(each, kind)
    peer.bind_exchange(names[1], names[0], "a.#")
    peer.bind_exchange(names[2], names[0], "*.b")
    peer.bind_exchange(names[3], names[1], "a.b")
    peer.bind_exchange(names[3], names[2])
    peer.bind_exchange(names[0], names[3], "#")
    peer.bind(queue, names[3], "a.*")
    peer.bind(queue, names[2])
    for key, arrives in (("a.b", 1), ("a.c", 0), ("x.b", 1), ("b", 0)):
        peer.publish(names[0], key, b"x")
        assert peer.purge(queue) == arrives, key
    for each in names:
        peer.call(made(commands.Exchange.Delete, exchange=each), 1, commands.Exchange.DeleteOk)


def test_an_alternate_exchange_gets_unroutable_messages(peer: RawClient, name: str) -> None:
    """https://www.rabbitmq.com/docs/ae: a chain of them, a circle, and one that is not there."""
    queue, other = peer.declare(exclusive=True), peer.declare(exclusive=True)
    names = [f"{name}-{number}" for number in range(3)]
    for each, following in zip(names, names[1:] + names[:1], strict=True):
        peer.declare_exchange(each, arguments={"alternate-exchange": following})
    peer.bind(queue, names[0], "zero")
    peer.bind(other, names[2], "two")
    for key, arrive in (("zero", (1, 0)), ("two", (0, 1)), ("three", (0, 0))):
        peer.publish(names[0], key, b"x", mandatory=True)
        if arrive == (0, 0):
            assert peer.receive_message(commands.Basic.Return).body == b"x"
        assert (peer.purge(queue), peer.purge(other)) == arrive, key
    # What another key of its own bindings leads to is not the alternate's.
    peer.bind(queue, names[0], "two")
    peer.publish(names[0], "two", b"x")
    assert (peer.purge(queue), peer.purge(other)) == (1, 0)
    peer.call(made(commands.Exchange.Delete, exchange=names[1]), 1, commands.Exchange.DeleteOk)
    peer.publish(names[0], "elsewhere", b"x", mandatory=True)
    peer.receive_message(commands.Basic.Return)
    for each in names:
        peer.call(made(commands.Exchange.Delete, exchange=each), 1, commands.Exchange.DeleteOk)


def test_the_default_exchange_as_alternate_routes_nowhere(peer: RawClient, name: str) -> None:
    queue = peer.declare(exclusive=True)
    peer.declare_exchange(name, "fanout", arguments={"alternate-exchange": ""})
    peer.publish(name, queue, b"x", mandatory=True)
    peer.receive_message(commands.Basic.Return)
    assert peer.purge(queue) == 0
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)


def test_a_changed_binding_applies_to_the_next_message(
    raw_connect: RawConnect, peer: RawClient, name: str
) -> None:
    """Repeat a publish while its bindings change."""
    other = raw_connect().connect().open()
    peer.declare_exchange(name, "fanout")
    first, second = peer.declare(exclusive=True), other.declare(exclusive=True)
    peer.publish(name, "k", b"x", mandatory=True)
    peer.receive_message(commands.Basic.Return)
    peer.bind(first, name)
    peer.publish(name, "k", b"x")
    assert peer.purge(first) == 1
    other.bind(second, name)
    peer.publish(name, "k", b"x")
    assert (peer.purge(first), other.purge(second)) == (1, 1)
    other.call(made(commands.Queue.Delete, queue=second), 1, commands.Queue.DeleteOk)
    peer.publish(name, "k", b"x")
    assert peer.purge(first) == 1
    other.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)
    peer.publish(name, "k", b"x")
    assert peer.refusal() == refused(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", (60, 40))


# -- topics


def matches(pattern: list[str], key: list[str]) -> bool:
    """Match a pattern word by word, as the definition says: `*` is one word, `#` none or more."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(matches(pattern[1:], key[taken:]) for taken in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


def words(text: str) -> list[str]:
    return text.split(".") if text else []


KEYS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).map(".".join)


@given(
    st.lists(KEYS, max_size=8),
    st.lists(KEYS, min_size=1, max_size=4),
    st.sampled_from([0, 62, 63, 130]),
    st.data(),
)
@settings(deadline=None, max_examples=examples(300))
@example(["#.#.#.#.a", "*.*", ""], [""], 0, None)
@example(["a.#.*.b", "*.*.*.b", "#.*.b"], ["x", "b", "a"], 0, None)
def test_topic_matching_follows_the_definition(
    patterns: list[str], keys: list[str], further: int, data: Any
) -> None:
    keys = [*(f"a.{number}" for number in range(further)), *keys]
    encoded = [key.encode() for key in keys]

    def expected(numbers: set[int]) -> set[int]:
        return {
            number for number in numbers if any(matches(words(patterns[number]), words(key)) for key in keys)
        }

    trie = TopicTrie()
    for number, pattern in enumerate(patterns):
        trie.add(pattern.encode(), number)
        trie.add(b"other", number)
        trie.remove(b"other", number)
    left = set(range(len(patterns)))
    assert set(trie.match(encoded)) == expected(left)
    if data is not None and patterns:
        gone = data.draw(st.sets(st.integers(0, len(patterns) - 1)))
        for number in gone:
            trie.remove(patterns[number].encode(), number)
        left -= gone
        assert set(trie.match(encoded)) == expected(left)
        for number in left:
            trie.remove(patterns[number].encode(), number)
        assert not trie.root.children


def test_many_wildcards_do_not_multiply_the_cost() -> None:
    trie = TopicTrie()
    trie.add(b".".join([b"#"] * 40), "all")
    trie.add(b".".join([b"#", b"x"] * 20), "x")
    assert set(trie.match([b".".join([b"y"] * 100)])) == {"all"}
    assert set(trie.match([b".".join([b"x"] * 100)])) == {"all", "x"}


@pytest.mark.parametrize(
    ("pattern", "key", "arrives"),
    [
        ("*", "", False),
        ("#", "", True),
        ("", "", True),
        ("", ".", False),
        ("*.*", ".", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.a", "a", True),
        ("#.a", "b.a.b", False),
        ("#.#", "", True),
        ("*.#", "", False),
        ("a.*.b", "a..b", True),
        ("*", "*", True),
        ("x", "*", False),
        ("#", "#", True),
        ("*.*", "#", False),
    ],
)
def test_topic_corner_cases_match_rabbitmq(
    peer: RawClient, name: str, pattern: str, key: str, arrives: bool
) -> None:
    """Check that the corner cases of `matches` are those of RabbitMQ."""
    assert matches(words(pattern), words(key)) == arrives
    queue = peer.declare(exclusive=True)
    peer.declare_exchange(name, "topic", auto_delete=True)
    peer.bind(queue, name, pattern)
    peer.publish(name, key, b"x")
    assert peer.purge(queue) == arrives
