"""One broker under play: two connections of a script, all that comes over them, and a look at each queue and exchange."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from pamqp import base, commands

from tests.conformance.line import Channel, Heard, Line
from tests.conformance.names import Names
from tests.conformance.observation import Content, Delivery, Observation, comparable
from tests.conformance.steps import Leave, Pass, Publish, Say, Settle, Step
from tests.support.raw_client import described, made

FENCE = 99
LOOK = 100
"""The first of the channels on which queues and exchanges are looked at, one each."""
UNKNOWN_TAG = 77_777_777
LATE = 0.002
"""Seconds between two looks at what has not come yet."""


class Side:
    """A broker, and what a script has to do with it."""

    def __init__(
        self,
        url: str,
        queues: Sequence[str],
        exchanges: Sequence[str],
        let_pass: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        :param queues: names that the script uses; after each step it is looked what became of them
        :param let_pass: makes seconds pass for this broker
        """
        self.queues = list(queues)
        self.exchanges = list(exchanges)
        self.names = Names([*queues, *exchanges])
        self.let_pass = let_pass
        self.lines = [Line(url), Line(url)]
        self.seen = Observation()
        self.arrived: list[tuple[Delivery, int]] = []
        """The deliveries of this step, with their tags."""
        self.deliveries: list[tuple[int, int, int, int]] = []
        """Of each delivery of the script: step, connection, channel and tag."""
        self.steps = 0

    # -- playing

    def take(self, step: Step, goal: Observation | None = None, patience: float = 0.0) -> Observation:
        """Play a step and watch what comes of it.

        :param goal: what is waited for. Without it, the broker has to have said everything before it answers what it is
            asked next on each connection.
        :param patience: for how many seconds
        """
        self.seen = Observation()
        self.arrived = []
        self._act(step)
        end = time.monotonic() + patience
        while True:
            for who in range(len(self.lines)):
                self._fence(who)
            self._look()
            self._sort()
            if goal is None or self.seen == goal or time.monotonic() > end or self.seen.exceeds(goal):
                break
            time.sleep(LATE)
        for delivery, tag in self.arrived:
            self.deliveries.append((self.steps, delivery.who, delivery.channel, tag))
        self.steps += 1
        return self.seen

    def _act(self, step: Step) -> None:
        match step:
            case Say():
                self._say(step.who, step.channel, self.names.command(step.command))
            case Publish():
                method = made(
                    commands.Basic.Publish,
                    exchange=self.names.actual(step.exchange),
                    routing_key=self.names.actual(step.key),
                    mandatory=step.mandatory,
                )
                self._open(step.who, step.channel)
                properties = self.names.properties(step.properties)
                self.lines[step.who].publish(method, step.body, properties, step.channel)
                self._await(step.who, step.channel, commands.Channel.Flow(True))
                if step.then_pass:
                    self.let_pass(step.then_pass)
            case Settle():
                self._settle(step)
            case Leave():
                self._leave(step)
            case Pass():
                self.let_pass(step.seconds)

    def _say(self, who: int, channel: int, command: base.Frame) -> None:
        self._open(who, channel)
        if command.synchronous and not getattr(command, "nowait", False):
            answer = self._await(who, channel, command)
            if answer is not None:
                self._note(who, answer)
        else:
            self.lines[who].send(command, channel)
            # The channel has worked it off when it answers this.
            self._await(who, channel, commands.Channel.Flow(True))

    def _settle(self, step: Settle) -> None:
        tag = self._tag(step)
        methods: dict[str, base.Frame] = {
            "ack": commands.Basic.Ack(tag, step.multiple),
            "nack": commands.Basic.Nack(tag, step.multiple, step.requeue),
            "reject": commands.Basic.Reject(tag, step.requeue),
        }
        self._say(step.who, step.channel, methods[step.how])
        said = self.seen.answers.get((step.who, step.channel), [])
        # Two brokers may have given the same delivery different tags.
        said[:] = [re.sub(rf"delivery tag {tag}\b", "delivery tag TAG", text) for text in said]

    def _tag(self, step: Settle) -> int:
        if step.delivery < 0:
            return UNKNOWN_TAG
        place = self.deliveries[step.delivery][:3]
        if step.multiple:
            # Several queues deliver in any order: what came in one step is settled together.
            return max(delivery[3] for delivery in self.deliveries if delivery[:3] == place)
        return self.deliveries[step.delivery][3]

    def _leave(self, step: Leave) -> None:
        line = self.lines[step.who]
        if step.politely and line.connected:
            line.send(commands.Connection.Close(200, "bye", 0, 0), 0)
            while line.connected:
                self._hear(step.who)
        line.lost()

    def _open(self, who: int, channel: int) -> None:
        if channel not in self.lines[who].channels:
            self._await(who, channel, commands.Channel.Open())

    def _await(self, who: int, channel: int, command: base.Frame) -> Heard | None:
        """Send a method and read until its answer; none if the channel or the connection ends before it."""
        line = self.lines[who]
        line.send(command, channel)
        opening = isinstance(command, commands.Channel.Open)
        while True:
            heard = self._hear(who)
            if heard is not None and heard.channel == channel:
                if heard.method.name in command.valid_responses:
                    return heard
                if isinstance(heard.method, commands.Channel.Close):
                    return None
            if not line.connected:
                if not opening:
                    return None
                line.send(command, channel)

    # -- hearing

    def _hear(self, who: int) -> Heard | None:
        """Take one method. What the script asked for, or a channel's end, is returned; anything else is noted here."""
        line = self.lines[who]
        try:
            heard = line.hear()
        except ConnectionError:
            self._say_of(who, 0, "the socket is closed")
            line.lost()
            return None
        method = heard.method
        state = line.channels.get(heard.channel)
        match method:
            case commands.Connection.Close():
                self._say_of(who, 0, described(method))
                line.send(commands.Connection.CloseOk(), 0)
                line.lost()
            case commands.Connection.CloseOk():
                line.lost()
            case commands.Channel.Close():
                line.send(commands.Channel.CloseOk(), heard.channel)
                del line.channels[heard.channel]
                if heard.channel < FENCE:
                    self._say_of(who, heard.channel, described(method))
                return heard
            case commands.Channel.CloseOk():
                line.channels.pop(heard.channel, None)
                return heard
            case commands.Channel.OpenOk():
                line.channels[heard.channel] = Channel()
                return heard
            case commands.Basic.Deliver():
                assert state is not None
                consumer = self.names.text(method.consumer_tag or "")
                early = "" if consumer in state.consumers else "(before consume-ok) "
                self._arrive(who, heard, consumer, f"{early}{'redelivered ' * bool(method.redelivered)}")
            case commands.Basic.Return():
                assert state is not None
                late = " after its confirm" if state.confirming and not state.unsettled else ""
                self._say_of(who, heard.channel, f"{self._content(heard, described(method))}{late}")
            case commands.Basic.Ack() | commands.Basic.Nack():
                assert state is not None
                settled = self.seen.confirms.setdefault((who, heard.channel), {})
                for number in state.settles(method.delivery_tag or 0, bool(method.multiple)):
                    settled[number] = method.name
            case commands.Basic.Cancel() | commands.Connection.Blocked() | commands.Connection.Unblocked():
                self._say_of(who, heard.channel, described(method))
            case _:
                return heard
        return None

    def _note(self, who: int, heard: Heard) -> None:
        """The answer to a method of the script."""
        method = heard.method
        if isinstance(method, commands.Basic.GetOk):
            again = "redelivered " * bool(method.redelivered)
            self._arrive(who, heard, "basic.get", f"{again}{method.message_count} left ")
            return
        state = self.lines[who].channels.get(heard.channel)
        if state is not None and isinstance(method, commands.Confirm.SelectOk):
            state.confirming = True
        if state is not None and isinstance(method, commands.Basic.ConsumeOk):
            state.consumers.add(self.names.text(method.consumer_tag or ""))
        self._say_of(who, heard.channel, described(method))

    def _say_of(self, who: int, channel: int, text: str) -> None:
        self.seen.answers.setdefault((who, channel), []).append(self.names.text(text))

    def _arrive(self, who: int, heard: Heard, consumer: str, flags: str) -> None:
        method = heard.method
        assert isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk)
        said = f"{flags}exchange {method.exchange!r} key {method.routing_key!r}"
        self.arrived.append(
            (
                Delivery(who, heard.channel, consumer, self._content(heard, said)),
                method.delivery_tag or 0,
            )
        )

    def _content(self, heard: Heard, said: str) -> Content:
        return Content(self.names.text(said), self.names.neutral(comparable(heard.header)), heard.body)

    def _sort(self) -> None:
        """Put what came in no certain order into one: only a consumer's own deliveries have theirs."""
        self.arrived.sort(key=lambda pair: (pair[0].who, pair[0].channel, pair[0].consumer))
        self.seen.deliveries = [delivery for delivery, _ in self.arrived]
        self.seen.tags = {}
        for delivery, tag in self.arrived:
            self.seen.tags.setdefault((delivery.who, delivery.channel), []).append(tag)
        for tags in self.seen.tags.values():
            tags.sort()

    # -- looking

    def _fence(self, who: int) -> None:
        """Read what the broker has sent so far."""
        if self.lines[who].connected:
            self._open(who, FENCE)
            if self.lines[who].connected:
                self._await(who, FENCE, commands.Channel.Flow(True))

    def _look(self) -> None:
        """What became of each queue and exchange; a queue that is exclusive to the second connection is asked for there."""
        asked: dict[int, tuple[dict[str, str], str, base.Frame]] = {}
        for number, name in enumerate(self.queues):
            command = made(commands.Queue.Declare, queue=self.names.actual(name), passive=True)
            asked[LOOK + number] = (self.seen.queues, name, command)
        for number, name in enumerate(self.exchanges, len(self.queues)):
            declare = made(commands.Exchange.Declare, exchange=self.names.actual(name), passive=True)
            asked[LOOK + number] = (self.seen.exchanges, name, declare)
        self._ask(0, asked)
        locked = {number: one for number, one in asked.items() if one[0].get(one[1]) == "locked"}
        if locked and self.lines[1].connected:
            self._ask(1, locked)

    def _ask(self, who: int, asked: dict[int, tuple[dict[str, str], str, base.Frame]]) -> None:
        line = self.lines[who]
        open_ask = dict(asked)
        for channel, (_, _, command) in asked.items():
            if channel not in line.channels:
                line.send(commands.Channel.Open(), channel)
            line.send(command, channel)
        while open_ask:
            heard = self._hear(who)
            if heard is None:
                if not line.connected:
                    if who == 0:
                        self._ask(who, asked)
                    return
                continue
            if heard.channel not in open_ask or isinstance(heard.method, commands.Channel.OpenOk):
                continue
            table, name, _ = open_ask.pop(heard.channel)
            match heard.method:
                case commands.Queue.DeclareOk(message_count=ready, consumer_count=consumers):
                    table[name] = f"{ready} ready, {consumers} consumers"
                case commands.Channel.Close(reply_code=code):
                    table[name] = {404: "none", 405: "locked"}.get(code or 0, str(code))
                case _:
                    table[name] = "there"

    # -- the end

    def end(self) -> None:
        """Leave nothing behind."""
        for line in self.lines:
            line.lost()
        self.lines[1] = self.lines[0]
        self._open(0, FENCE)
        for name in self.queues + list(self.names.generated):
            self._await(0, FENCE, made(commands.Queue.Delete, queue=self.names.actual(name)))
            self._open(0, FENCE)
        for name in self.exchanges:
            self._await(0, FENCE, made(commands.Exchange.Delete, exchange=self.names.actual(name)))
            self._open(0, FENCE)
        line = self.lines[0]
        if line.connected:
            line.send(commands.Connection.Close(200, "bye", 0, 0), 0)
            while line.connected:
                self._hear(0)
