"""Session of a script on one broker: two clients, everything they receive, and queries of each queue and exchange."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from pamqp import base, commands

from tests.conformance.name_mapping import NameMapping
from tests.conformance.observation import Content, Delivery, Observation, comparable
from tests.conformance.script_connection import Channel, ReceivedMethod, ScriptConnection
from tests.conformance.steps import CallMethod, CloseConnection, Publish, Settle, Step, WaitSeconds
from tests.support.broker_behaviour import behaviour
from tests.support.raw_client import described, made

SYNC_CHANNEL = 99
QUERY_CHANNEL = 100
"""First of the channels on which queues and exchanges are queried, one each."""
UNKNOWN_TAG = 77_777_777
POLL_INTERVAL = 0.002
"""Seconds between two checks for missing effects."""


class BrokerSession:
    """Execution of a script's steps on one broker."""

    def __init__(
        self,
        url: str,
        queues: Sequence[str],
        exchanges: Sequence[str],
        advance_time: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        :param queues: names that the script uses, which are queried after each step
        :param advance_time: advances this broker's clock by seconds
        """
        self.queues = list(queues)
        self.exchanges = list(exchanges)
        self.names = NameMapping([*queues, *exchanges])
        self.advance_time = advance_time
        self.lines = [ScriptConnection(url), ScriptConnection(url)]
        self.observation = Observation()
        self.new_deliveries: list[tuple[Delivery, int]] = []
        """Deliveries of this step, with their tags."""
        self.deliveries: list[tuple[int, int, int, int]] = []
        """Step, client, channel and tag of each delivery of the script."""
        self.steps = 0

    # -- steps

    def play(self, step: Step, goal: Observation | None = None, patience: float = 0.0) -> Observation:
        """Run a step and observe its effects.

        :param goal: effects to wait for. Without it, the broker must have sent everything before it replies to the next
            method on each connection
        :param patience: seconds to wait
        """
        self.observation = Observation()
        self.new_deliveries = []
        self._act(step)
        end = time.monotonic() + patience
        while True:
            for client in range(len(self.lines)):
                self._sync(client)
            self._observe_queues()
            self._sort()
            if (
                goal is None
                or self.observation == goal
                or time.monotonic() > end
                or self.observation.contradicts(goal)
            ):
                break
            time.sleep(POLL_INTERVAL)
        for delivery, tag in self.new_deliveries:
            self.deliveries.append((self.steps, delivery.client, delivery.channel, tag))
        self.steps += 1
        return self.observation

    def _act(self, step: Step) -> None:
        match step:
            case CallMethod():
                self._call(step.client, step.channel, self.names.command(step.command))
            case Publish():
                method = made(
                    commands.Basic.Publish,
                    exchange=self.names.to_broker_name(step.exchange),
                    routing_key=self.names.to_broker_name(step.key),
                    mandatory=step.mandatory,
                )
                self._open(step.client, step.channel)
                properties = self.names.properties(step.properties)
                self.lines[step.client].publish(method, step.body, properties, step.channel)
                self._call_and_wait(step.client, step.channel, commands.Channel.Flow(True))
            case Settle():
                self._settle(step)
            case CloseConnection():
                self._close_connection(step)
            case WaitSeconds():
                self.advance_time(step.seconds)
        if not isinstance(step, WaitSeconds) and step.wait_after:
            self.advance_time(step.wait_after)

    def _call(self, client: int, channel: int, command: base.Frame) -> None:
        self._open(client, channel)
        if command.synchronous and not getattr(command, "nowait", False):
            answer = self._call_and_wait(client, channel, command)
            if answer is not None:
                self._record_reply(client, answer)
        else:
            self.lines[client].send(command, channel)
            # The reply to this method shows that the channel has processed the command.
            self._call_and_wait(client, channel, commands.Channel.Flow(True))

    def _settle(self, step: Settle) -> None:
        tag = self._tag(step)
        methods: dict[str, base.Frame] = {
            "ack": commands.Basic.Ack(tag, step.multiple),
            "nack": commands.Basic.Nack(tag, step.multiple, step.requeue),
            "reject": commands.Basic.Reject(tag, step.requeue),
        }
        self._call(step.client, step.channel, methods[step.how])
        texts = self.observation.answers.get((step.client, step.channel), [])
        # Two brokers may use different tags for the same delivery.
        texts[:] = [re.sub(rf"delivery tag {tag}\b", "delivery tag TAG", text) for text in texts]

    def _tag(self, step: Settle) -> int:
        if step.delivery < 0:
            return UNKNOWN_TAG
        place = self.deliveries[step.delivery][:3]
        if step.multiple:
            # Several queues deliver in any order: deliveries of one step are settled together.
            return max(delivery[3] for delivery in self.deliveries if delivery[:3] == place)
        return self.deliveries[step.delivery][3]

    def _close_connection(self, step: CloseConnection) -> None:
        connection = self.lines[step.client]
        if step.gracefully and connection.connected:
            connection.send(commands.Connection.Close(200, "bye", 0, 0), 0)
            while connection.connected:
                self._process_method(step.client)
        connection.disconnect()

    def _open(self, client: int, channel: int) -> None:
        if channel not in self.lines[client].channels:
            self._call_and_wait(client, channel, commands.Channel.Open())

    def _call_and_wait(self, client: int, channel: int, command: base.Frame) -> ReceivedMethod | None:
        """Send a method and read until its reply; None if the channel or the connection is closed before."""
        connection = self.lines[client]
        connection.send(command, channel)
        opening = isinstance(command, commands.Channel.Open)
        while True:
            received = self._process_method(client)
            if received is not None and received.channel == channel:
                if received.method.name in command.valid_responses:
                    return received
                if isinstance(received.method, commands.Channel.Close):
                    return None
            if not connection.connected:
                if not opening:
                    return None
                connection.send(command, channel)

    # -- receiving

    def _process_method(self, client: int) -> ReceivedMethod | None:
        """Read one method. Return replies and channel closes; record anything else."""
        connection = self.lines[client]
        try:
            received = connection.read_method()
        except ConnectionError:
            self._record(client, 0, "the socket is closed")
            connection.disconnect()
            return None
        method = received.method
        state = connection.channels.get(received.channel)
        match method:
            case commands.Connection.Close():
                self._record(client, 0, described(method))
                connection.send(commands.Connection.CloseOk(), 0)
                connection.disconnect()
            case commands.Connection.CloseOk():
                connection.disconnect()
            case commands.Channel.Close():
                connection.send(commands.Channel.CloseOk(), received.channel)
                del connection.channels[received.channel]
                if received.channel < SYNC_CHANNEL:
                    self._record(client, received.channel, described(method))
                return received
            case commands.Channel.CloseOk():
                connection.channels.pop(received.channel, None)
                return received
            case commands.Channel.OpenOk():
                connection.channels[received.channel] = Channel()
                return received
            case commands.Basic.Deliver():
                assert state is not None
                consumer = self.names.text(method.consumer_tag or "")
                early = "" if consumer in state.consumers else "(before consume-ok) "
                self._record_delivery(
                    client,
                    received,
                    consumer,
                    f"{early}{self._redelivered(client, received, bool(method.redelivered))}",
                )
            case commands.Basic.Return():
                assert state is not None
                late = " after its confirm" if state.confirming and not state.unsettled else ""
                self._record(client, received.channel, f"{self._content(received, described(method))}{late}")
            case commands.Basic.Ack() | commands.Basic.Nack():
                assert state is not None
                settled = self.observation.confirms.setdefault((client, received.channel), {})
                for number in state.settle(method.delivery_tag or 0, bool(method.multiple)):
                    settled[number] = method.name
            case commands.Basic.Cancel() | commands.Connection.Blocked() | commands.Connection.Unblocked():
                self._record(client, received.channel, described(method))
            case _:
                return received
        return None

    def _record_reply(self, client: int, received: ReceivedMethod) -> None:
        """Record the reply to a method of the script."""
        method = received.method
        if isinstance(method, commands.Basic.GetOk):
            again = self._redelivered(client, received, bool(method.redelivered))
            self._record_delivery(client, received, "basic.get", f"{again}{method.message_count} left ")
            return
        state = self.lines[client].channels.get(received.channel)
        if state is not None and isinstance(method, commands.Confirm.SelectOk):
            state.confirming = True
        if state is not None and isinstance(method, commands.Basic.ConsumeOk):
            state.consumers.add(self.names.text(method.consumer_tag or ""))
        self._record(client, received.channel, described(method))

    def _redelivered(self, client: int, received: ReceivedMethod, flag: bool) -> str:
        """Return the text of the flag `redelivered`; empty for dead letters of 4.3, a known difference."""
        is_dead_letter = b"\x07x-death" in received.header
        differs = is_dead_letter and behaviour(self.lines[client].peer.server).is_4_3
        return "redelivered " * (flag and not differs)

    def _record(self, client: int, channel: int, text: str) -> None:
        self.observation.answers.setdefault((client, channel), []).append(self.names.text(text))

    def _record_delivery(self, client: int, received: ReceivedMethod, consumer: str, flags: str) -> None:
        method = received.method
        assert isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk)
        texts = f"{flags}exchange {method.exchange!r} key {method.routing_key!r}"
        self.new_deliveries.append(
            (
                Delivery(client, received.channel, consumer, self._content(received, texts)),
                method.delivery_tag or 0,
            )
        )

    def _content(self, received: ReceivedMethod, texts: str) -> Content:
        return Content(
            self.names.text(texts), self.names.to_script_names(comparable(received.header)), received.body
        )

    def _sort(self) -> None:
        """Sort what arrives in no defined order: only the deliveries of one consumer are ordered."""
        self.new_deliveries.sort(key=lambda pair: (pair[0].client, pair[0].channel, pair[0].consumer))
        self.observation.deliveries = [delivery for delivery, _ in self.new_deliveries]
        self.observation.tags = {}
        for delivery, tag in self.new_deliveries:
            self.observation.tags.setdefault((delivery.client, delivery.channel), []).append(tag)
        for tags in self.observation.tags.values():
            tags.sort()

    # -- queries

    def _sync(self, client: int) -> None:
        """Read what the broker has sent so far."""
        if self.lines[client].connected:
            self._open(client, SYNC_CHANNEL)
            if self.lines[client].connected:
                self._call_and_wait(client, SYNC_CHANNEL, commands.Channel.Flow(True))

    def _observe_queues(self) -> None:
        """Query each queue and exchange; a queue that is exclusive to the second client on its connection."""
        asked: dict[int, tuple[dict[str, str], str, base.Frame]] = {}
        for number, name in enumerate(self.queues):
            command = made(commands.Queue.Declare, queue=self.names.to_broker_name(name), passive=True)
            asked[QUERY_CHANNEL + number] = (self.observation.queues, name, command)
        for number, name in enumerate(self.exchanges, len(self.queues)):
            declare = made(commands.Exchange.Declare, exchange=self.names.to_broker_name(name), passive=True)
            asked[QUERY_CHANNEL + number] = (self.observation.exchanges, name, declare)
        self._query(0, asked)
        locked = {number: item for number, item in asked.items() if item[0].get(item[1]) == "locked"}
        if locked and self.lines[1].connected:
            self._query(1, locked)

    def _query(self, client: int, asked: dict[int, tuple[dict[str, str], str, base.Frame]]) -> None:
        connection = self.lines[client]
        open_ask = dict(asked)
        for channel, (_, _, command) in asked.items():
            if channel not in connection.channels:
                connection.send(commands.Channel.Open(), channel)
            connection.send(command, channel)
        while open_ask:
            received = self._process_method(client)
            if received is None:
                if not connection.connected:
                    if client == 0:
                        self._query(client, asked)
                    return
                continue
            if received.channel not in open_ask or isinstance(received.method, commands.Channel.OpenOk):
                continue
            table, name, _ = open_ask.pop(received.channel)
            match received.method:
                case commands.Queue.DeclareOk(message_count=ready, consumer_count=consumers):
                    table[name] = f"{ready} ready, {consumers} consumers"
                case commands.Channel.Close(reply_code=code):
                    table[name] = {404: "none", 405: "locked"}.get(code or 0, str(code))
                case _:
                    table[name] = "there"

    # -- the end

    def end(self) -> None:
        """Delete everything that the script declared."""
        for connection in self.lines:
            connection.disconnect()
        self.lines[1] = self.lines[0]
        self._open(0, SYNC_CHANNEL)
        for name in self.queues + list(self.names.generated):
            self._call_and_wait(
                0, SYNC_CHANNEL, made(commands.Queue.Delete, queue=self.names.to_broker_name(name))
            )
            self._open(0, SYNC_CHANNEL)
        for name in self.exchanges:
            self._call_and_wait(
                0, SYNC_CHANNEL, made(commands.Exchange.Delete, exchange=self.names.to_broker_name(name))
            )
            self._open(0, SYNC_CHANNEL)
        connection = self.lines[0]
        if connection.connected:
            connection.send(commands.Connection.Close(200, "bye", 0, 0), 0)
            while connection.connected:
                self._process_method(0)
