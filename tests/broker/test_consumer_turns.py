"""Property of the consumers of one queue: any arrivals and departures, with priorities, compared with a model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.common import FieldTable

from tests.support.blocking_client import Channel, Connection, Message
from tests.support.broker_behaviour import Behaviour
from tests.support.polling import PATIENCE, wait_until
from tests.support.tiers import examples


@dataclass(frozen=True)
class Arrive:
    """A consumer starts, on one of two channels."""

    channel: int
    priority: int


@dataclass(frozen=True)
class Leave:
    """One of the consumers is cancelled."""

    choice: int


@dataclass(frozen=True)
class Publish:
    """Messages are published."""

    count: int


@dataclass(frozen=True)
class Settle:
    """One of the unacknowledged messages is acknowledged."""

    choice: int


@dataclass(frozen=True)
class CloseChannel:
    """The second channel is closed, and opened again."""


STEP = (
    st.builds(Arrive, st.integers(0, 1), st.sampled_from([0, 0, 0, 1, -1, 5]))
    | st.builds(Publish, st.integers(1, 3))
    | st.builds(Settle, st.integers(0, 99))
    | st.builds(CloseChannel)
)
LEAVE = st.builds(Leave, st.integers(0, 99))


@dataclass
class Model:
    """Consumers with room take turns, those with a higher priority first; or the single active one gets everything."""

    prefetch: int
    single: bool
    priorities: dict[str, int] = field(default_factory=dict)
    """Priorities of the consumers by tag, in the order in which they came."""
    turns: list[str] = field(default_factory=list)
    active: str = ""
    waiting: deque[int] = field(default_factory=deque)
    held: dict[int, str] = field(default_factory=dict)
    """Consumers of the unacknowledged messages."""

    def offer(self, tag: str) -> None:
        """Let a consumer take part in the turns, if it has room."""
        has_room = list(self.held.values()).count(tag) < self.prefetch
        if tag in self.turns or not has_room or (self.single and tag != self.active):
            return
        behind = [each for each in self.turns if self.priorities[each] >= self.priorities[tag]]
        self.turns.insert(len(behind), tag)

    def arrive(self, tag: str, priority: int) -> None:
        self.priorities[tag] = priority
        self.active = self.active or tag
        self.offer(tag)

    def leave(self, tags: list[str]) -> None:
        for tag in tags:
            del self.priorities[tag]
            if tag in self.turns:
                self.turns.remove(tag)
        if self.active not in self.priorities:
            self.active = max(self.priorities, key=self.priorities.__getitem__, default="")
            if self.active:
                self.offer(self.active)

    def settle(self, message: int) -> None:
        tag = self.held.pop(message)
        if tag in self.priorities:
            self.offer(tag)

    def requeue(self, tags: list[str]) -> None:
        returned = [message for message, tag in self.held.items() if tag in tags]
        for message in returned:
            del self.held[message]
        self.waiting = deque(sorted([*self.waiting, *returned]))

    def deliver(self) -> None:
        while self.waiting and self.turns:
            tag = self.turns.pop(0)
            self.held[self.waiting.popleft()] = tag
            self.offer(tag)


@pytest.mark.parametrize("single", [False, True])
def test_each_message_goes_to_the_consumer_whose_turn_it_is(
    amqp_url: str, server: Behaviour, single: bool
) -> None:
    with Connection(amqp_url) as connection:
        # RabbitMQ takes 50 ms and more to tell what is delivered.
        most = 20 if connection.is_rabbitmq else 300

    may_leave = not single or server.delivers_after_cancel_of_active_consumer

    @settings(max_examples=examples(most), deadline=None)
    @given(steps=st.lists(STEP | LEAVE if may_leave else STEP, max_size=40), prefetch=st.integers(1, 2))
    def check(steps: list[object], prefetch: int) -> None:
        follow(amqp_url, steps, prefetch, single)

    check()


def follow(amqp_url: str, steps: list[object], prefetch: int, single: bool) -> None:
    """Take steps with a queue of the broker and with the model, and compare each delivery."""
    connection = Connection(amqp_url)
    channels = [connection.channel(), connection.channel()]
    queue = channels[0].declare(exclusive=True, x_single_active_consumer=single)
    for channel in channels:
        channel.qos(prefetch)
    model = Model(prefetch, single)
    channel_of: dict[str, Channel] = {}
    tags: dict[int, int] = {}
    published = 0
    for number, step in enumerate(steps):
        match step:
            case Arrive(index, priority):
                tag = f"{number}"
                channel_of[tag] = channels[index]
                arguments: FieldTable = {"x-priority": priority} if priority else {}
                consume = Basic.Consume(queue=queue, consumer_tag=tag, arguments=arguments)
                channels[index].call(consume, Basic.ConsumeOk)
                model.arrive(tag, priority)
            case Leave(choice) if model.priorities:
                tag = list(model.priorities)[choice % len(model.priorities)]
                channel_of[tag].cancel(tag)
                model.leave([tag])
            case Publish(count):
                for _ in range(count):
                    channels[0].publish(queue, f"{published}")
                    model.waiting.append(published)
                    published += 1
            case Settle(choice) if model.held:
                message = sorted(model.held)[choice % len(model.held)]
                channel_of[model.held[message]].ack(tags[message])
                model.settle(message)
            case CloseChannel():
                channels[1].close()
                ended = [tag for tag, channel in channel_of.items() if channel is channels[1]]
                model.leave([tag for tag in ended if tag in model.priorities])
                model.requeue(ended)
                channels[1] = connection.channel()
                channels[1].qos(prefetch)
        before = dict(model.held)
        model.deliver()
        expected = {number: tag for number, tag in model.held.items() if number not in before}
        found: dict[int, Message] = {}

        def have_arrived(found: dict[int, Message] = found, expected: dict[int, str] = expected) -> bool:
            found.update({int(each.body): each for channel in channels for each in channel.delivered(queue)})
            return len(found) >= len(expected)

        # A queue of RabbitMQ may answer long before its channels have sent what it delivered.
        seconds = PATIENCE if connection.is_rabbitmq else 0.0
        wait_until(have_arrived, f"messages {sorted(expected)} have arrived", seconds)
        assert {number: each.consumer for number, each in found.items()} == expected
        tags |= {number: each.tag for number, each in found.items()}
    connection.close()
