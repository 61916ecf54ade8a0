"""Random scripts: a state machine in which every rule is a step on both brokers.

Scripts are generated so that steps interact: few names, two clients, all kinds of conflicting arguments. Behaviour that
is random at RabbitMQ is left out (see `docs/conformance.md`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pamqp import base, commands
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx

from tests.conformance.differential_run import DifferentialRun
from tests.conformance.steps import CallMethod, CloseConnection, Publish, Settle
from tests.support.raw_client import made

QUEUES = ["q1", "q2", "q3", "q4"]
EXCHANGES = ["x1", "x2", "x3"]
SOURCES = [*EXCHANGES, *EXCHANGES, "amq.direct", "amq.topic", "amq.fanout", "amq.headers", ""]
KEYS = ["", "a", "a.b", "#", "*", "a.*", "*.b", "a.#", "q1", "q2"]
TYPES = ["direct", "topic", "fanout", "headers"]
SHORT_MS = 40
EXPIRED_AFTER = 0.12
"""Seconds after which anything with a lifetime of `SHORT_MS` has expired."""

queues = st.sampled_from(QUEUES)
exchanges = st.sampled_from(EXCHANGES)
sources = st.sampled_from(SOURCES)
keys = st.sampled_from(KEYS)
connections = st.sampled_from([0, 0, 1])
channels = st.sampled_from([1, 1, 2])
often = st.sampled_from([True, True, False])
seldom = st.sampled_from([False, False, False, False, True])


def table(**values: object) -> dict[str, object]:
    return {f"x-{name.replace('_', '-')}": value for name, value in values.items()}


LIMIT_ARGUMENTS = [
    table(max_length=1),
    table(max_length=2, overflow="reject-publish"),
    table(max_length=2, overflow="reject-publish-dlx", dead_letter_exchange="x1"),
    table(max_length_bytes=4),
    table(max_length=0),
    table(message_ttl=0),
    table(message_ttl=0, dead_letter_exchange="x1"),
    table(max_priority=3),
    table(max_priority=3, max_length=2),
    table(single_active_consumer=True),
    table(dead_letter_exchange="x1"),
    table(dead_letter_exchange="x2", dead_letter_routing_key="a.b"),
    table(dead_letter_exchange="", dead_letter_routing_key="q2"),
    table(dead_letter_exchange="", dead_letter_routing_key="q1", max_length=1),
    table(dead_letter_exchange="x3", max_length=1),
]
EXPIRY_ARGUMENTS = [
    table(message_ttl=SHORT_MS),
    table(message_ttl=SHORT_MS, dead_letter_exchange="", dead_letter_routing_key="q2"),
    table(message_ttl=SHORT_MS, dead_letter_exchange="x1"),
    table(message_ttl=SHORT_MS, max_priority=2),
]
INVALID_ARGUMENTS = [
    table(max_length=-1),
    table(max_length="2"),
    table(overflow="bad"),
    table(expires=0),
    table(message_ttl=-5),
    table(message_ttl=True),
    table(dead_letter_routing_key="a"),
    table(dead_letter_exchange=3),
    table(max_priority=256),
    table(single_active_consumer="yes"),
    table(queue_type="nonsense"),
    table(queue_type="quorum"),
]
MATCHES: list[dict[str, object]] = [
    {},
    {},
    {"k": 1},
    {"k": 1, "x-match": "any", "l": "v"},
    {"k": 1, "x-match": "all", "l": "v"},
    {"k": True},
    {"k": None},
    {"x-match": "all-with-x", "x-k": 1},
    {"x-match": "any-with-x", "x-k": 1},
]
HEADERS: list[dict[str, Any] | None] = [
    None,
    None,
    {"k": 1},
    {"k": 1, "l": "v"},
    {"l": "v", "x-k": 1},
    {"k": "1"},
    {"k": 1.0},
    {"CC": ["a", "q2"]},
    {"BCC": ["q1"], "CC": ["a.b"]},
    {"CC": "a"},
]
Rule = TypeVar("Rule", bound=Callable[..., None])


def starts_lifetimes(step: CallMethod | Publish | Settle | CloseConnection) -> bool:
    """Return whether the step may publish, dead-letter or requeue messages."""
    if isinstance(step, CallMethod):
        return isinstance(step.command, (Tx.Commit, Basic.Recover, commands.Channel.Close))
    return isinstance(step, (Publish, Settle, CloseConnection))


class RandomScript(RuleBasedStateMachine):
    """One script. The tests set `make_run` and `timed`."""

    make_run: Callable[[list[str], list[str]], DifferentialRun]
    timed = False
    """True if messages may expire after a while. Each step that publishes, dead-letters or requeues messages then waits
    until they have expired, because RabbitMQ may take longer than their lifetime to show its state."""

    def __init__(self) -> None:
        super().__init__()
        self.run = type(self).make_run(QUEUES, EXCHANGES)
        self.bodies = itertools.count()
        self.outstanding: dict[int, tuple[int, int]] = {}
        """Client and channel of the deliveries that can be settled."""
        self.consumers: dict[tuple[int, int], list[str]] = {}
        self.tags = itertools.count()

    def call_method(self, client: int, channel: int, command: base.Frame) -> None:
        self.play(CallMethod(client, channel, command))

    def play(self, step: CallMethod | Publish | Settle | CloseConnection) -> None:
        before = len(self.run.subject.deliveries)
        if self.timed and starts_lifetimes(step):
            step = replace(step, wait_after=EXPIRED_AFTER)
        observed = self.run.play(step)
        for (client, channel), texts in observed.answers.items():
            if any("Close" in text for text in texts):
                self.forget(client, channel or None)
        if isinstance(step, CloseConnection):
            self.forget(step.client, None)
        for number, (_, client, channel, _) in enumerate(self.run.subject.deliveries[before:], before):
            self.outstanding[number] = (client, channel)

    def forget(self, client: int, channel: int | None) -> None:
        """Remove the state of a closed channel, or of all channels of a connection."""
        gone = [place for place in [(client, 1), (client, 2)] if channel in (None, place[1])]
        self.outstanding = {number: place for number, place in self.outstanding.items() if place not in gone}
        for place in gone:
            self.consumers.pop(place, None)

    def teardown(self) -> None:
        self.run.end()

    # -- topology

    @initialize(data=st.data())
    def set_up_topology(self, data: st.DataObject) -> None:
        """Declare initial queues and an exchange, so that short scripts contain messages."""
        for queue in ("q1", "q2"):
            arguments = data.draw(self.arguments(valid=True))
            self.call_method(0, 1, made(Queue.Declare, queue=queue, arguments=arguments))
        kind = data.draw(st.sampled_from(TYPES))
        self.call_method(0, 1, made(Exchange.Declare, exchange="x1", exchange_type=kind))
        for queue in ("q1", "q2"):
            key = data.draw(keys)
            self.call_method(0, 1, made(Queue.Bind, queue=queue, exchange="x1", routing_key=key))
        if data.draw(often):
            self.call_method(0, 1, Confirm.Select())

    def arguments(self, *, valid: bool) -> st.SearchStrategy[dict[str, object]]:
        known: list[dict[str, object]] = [{}, {}, {}, *LIMIT_ARGUMENTS]
        if self.timed:
            known += EXPIRY_ARGUMENTS
        return st.sampled_from(known if valid else known + INVALID_ARGUMENTS)

    @rule(
        client=connections,
        channel=channels,
        queue=queues,
        durable=seldom,
        exclusive=seldom,
        auto_delete=seldom,
        passive=seldom,
        data=st.data(),
    )
    def declare_queue(
        self, client: int, channel: int, queue: str, data: st.DataObject, **flags: bool
    ) -> None:
        arguments = data.draw(self.arguments(valid=False))
        self.call_method(client, channel, made(Queue.Declare, queue=queue, arguments=arguments, **flags))

    @rule(
        client=connections,
        channel=channels,
        exchange=sources,
        kind=st.sampled_from(TYPES),
        alternate=st.one_of(st.none(), st.none(), sources, st.just(5)),
        durable=seldom,
        auto_delete=seldom,
        internal=seldom,
        passive=seldom,
    )
    def declare_exchange(
        self, client: int, channel: int, exchange: str, kind: str, alternate: object, **flags: bool
    ) -> None:
        arguments = {} if alternate is None else {"alternate-exchange": alternate}
        command = made(Exchange.Declare, exchange=exchange, exchange_type=kind, arguments=arguments, **flags)
        self.call_method(client, channel, command)

    @rule(
        client=connections,
        channel=channels,
        queue=queues,
        exchange=sources,
        routing_key=keys,
        arguments=st.sampled_from(MATCHES),
        undone=seldom,
    )
    def bind_queue(self, client: int, channel: int, undone: bool, **fields: object) -> None:
        self.call_method(client, channel, made(Queue.Unbind if undone else Queue.Bind, **fields))

    @rule(
        client=connections,
        channel=channels,
        destination=st.sampled_from([*EXCHANGES, "amq.fanout", ""]),
        source=sources,
        routing_key=keys,
        arguments=st.sampled_from(MATCHES),
        undone=seldom,
    )
    def bind_exchange(self, client: int, channel: int, undone: bool, **fields: object) -> None:
        self.call_method(client, channel, made(Exchange.Unbind if undone else Exchange.Bind, **fields))

    @rule(client=connections, channel=channels, queue=queues, if_unused=seldom, if_empty=seldom)
    def delete_queue(self, client: int, channel: int, **fields: object) -> None:
        self.call_method(client, channel, made(Queue.Delete, **fields))

    @rule(client=connections, channel=channels, exchange=sources, if_unused=often)
    def delete_exchange(self, client: int, channel: int, **fields: object) -> None:
        self.call_method(client, channel, made(Exchange.Delete, **fields))

    @rule(client=connections, channel=channels, queue=queues)
    def purge(self, client: int, channel: int, queue: str) -> None:
        self.call_method(client, channel, made(Queue.Purge, queue=queue))

    # -- publishing

    @rule(
        client=connections,
        channel=channels,
        exchange=st.one_of(sources, st.just("x1"), st.just("")),
        key=st.one_of(keys, queues, queues),
        mandatory=often,
        headers=st.sampled_from(HEADERS),
        priority=st.sampled_from([None, None, 0, 1, 2, 9]),
        expiration=st.sampled_from([None, None, None, "0", "abc", str(SHORT_MS)]),
        persistent=seldom,
        times=st.sampled_from([1, 1, 1, 3]),
    )
    def publish(
        self,
        client: int,
        channel: int,
        exchange: str,
        key: str,
        mandatory: bool,
        headers: dict[str, Any] | None,
        priority: int | None,
        expiration: str | None,
        persistent: bool,
        times: int,
    ) -> None:
        if expiration == str(SHORT_MS) and not self.timed:
            expiration = None
        if expiration is not None:
            # A known difference: in a priority queue that is not empty, such a message may stay too long.
            priority = None
        properties = commands.Basic.Properties(
            headers=headers, priority=priority, expiration=expiration, delivery_mode=2 if persistent else None
        )
        for _ in range(times):
            body = b"m%d" % next(self.bodies)
            self.play(Publish(client, channel, exchange, key, body, properties, mandatory))

    @rule(client=connections, channel=channels)
    def select_confirms(self, client: int, channel: int) -> None:
        self.call_method(client, channel, Confirm.Select())

    @rule(
        client=connections,
        method=st.sampled_from([Tx.Select, Tx.Select, Tx.Commit, Tx.Commit, Tx.Rollback]),
    )
    def transact(self, client: int, method: type[base.Frame]) -> None:
        self.call_method(client, 2, method())

    # -- consuming

    @rule(client=connections, channel=channels, queue=queues, no_ack=seldom)
    def get(self, client: int, channel: int, queue: str, no_ack: bool) -> None:
        before = len(self.run.subject.deliveries)
        self.call_method(client, channel, made(Basic.Get, queue=queue, no_ack=no_ack))
        if no_ack:
            self.outstanding.pop(before, None)

    @rule(
        client=connections,
        channel=channels,
        queue=queues,
        no_ack=seldom,
        exclusive=seldom,
        priority=st.sampled_from([None, None, None, 1, -1]),
        again=seldom,
    )
    def consume(
        self,
        client: int,
        channel: int,
        queue: str,
        priority: int | None,
        again: bool,
        **flags: bool,
    ) -> None:
        mine = self.consumers.setdefault((client, channel), [])
        tag = mine[-1] if again and mine else f"c{next(self.tags)}"
        arguments = {} if priority is None else {"x-priority": priority}
        mine.append(tag)
        self.call_method(
            client,
            channel,
            made(Basic.Consume, queue=queue, consumer_tag=tag, arguments=arguments, **flags),
        )

    @rule(client=connections, channel=channels)
    def cancel(self, client: int, channel: int) -> None:
        mine = self.consumers.get((client, channel)) or ["nobody"]
        self.call_method(client, channel, made(Basic.Cancel, consumer_tag=mine.pop(0)))

    @rule(client=connections, channel=channels, count=st.sampled_from([0, 1, 2, 3]), shared=seldom)
    def qos(self, client: int, channel: int, count: int, shared: bool) -> None:
        self.call_method(client, channel, Basic.Qos(prefetch_count=count, global_=shared))

    @precondition(lambda self: self.outstanding)
    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "ack", "ack", "nack", "reject"]),
        multiple=seldom,
        requeue=st.booleans(),
        stale=seldom,
    )
    def settle(self, data: st.DataObject, how: str, multiple: bool, requeue: bool, stale: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.outstanding)))
        client, channel = self.outstanding[number]
        multiple = multiple and how != "reject"
        if not stale:
            self.outstanding.pop(number)
        self.play(Settle(client, channel, how, number, multiple, requeue))

    @rule(client=connections, channel=channels)
    def settle_unknown(self, client: int, channel: int) -> None:
        self.play(Settle(client, channel, "ack", -1))

    @rule(client=connections, channel=channels)
    def recover(self, client: int, channel: int) -> None:
        self.call_method(client, channel, Basic.Recover(requeue=True))

    # -- ends

    @rule(client=connections, channel=channels)
    def close_channel(self, client: int, channel: int) -> None:
        self.call_method(client, channel, commands.Channel.Close(200, "bye", 0, 0))
        self.forget(client, channel)

    @rule(client=connections, gracefully=st.booleans())
    def leave(self, client: int, gracefully: bool) -> None:
        self.play(CloseConnection(client, gracefully))
