"""A stream's log against a plain list, through crashes, retention and damage: what was confirmed stays, at its offset."""

from __future__ import annotations

from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.tiers import examples
from tests.unit.store.disk import Disk
from tests.unit.store.stream_node import StreamNode
from warren.broker.store.stream.chunk_reader import BY_OFFSET, BY_TIME


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)
        self.node: StreamNode | None = None
        self.messages: list[bytes] = []
        """By offset; what retention has taken stays here."""
        self.groups: list[range] = []
        """Offsets that hold together."""
        self.first = 0
        self.now = 1000
        self.times: list[int] = []
        """When each was appended."""
        self.offsets: dict[bytes, int] = {}
        self.damaged = False

    @property
    def at(self) -> StreamNode:
        assert self.node is not None
        return self.node

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.open(Disk())

    def open(self, disk: Disk) -> None:
        self.node = StreamNode(disk, now=self.now)
        self.node.stream.segment_size = 4096
        self.node.stream.chunk_size = 2048

    # What the broker does

    @rule(count=st.integers(1, 30), size=st.sampled_from([0, 3, 60, 700, 5000]))
    def append(self, count: int, size: int) -> None:
        for _ in range(count):
            self.put(size)

    @rule(count=st.integers(1, 30), size=st.sampled_from([10, 700]))
    def transaction(self, count: int, size: int) -> None:
        first = len(self.messages)
        self.at.log.begin_group()
        for _ in range(count):
            self.put(size)
        self.at.log.end_group()
        self.groups.append(range(first, len(self.messages)))

    def put(self, size: int) -> None:
        body = self.random.randbytes(size)
        assert self.at.stream.next_offset == len(self.messages)
        self.at.append(body)
        self.messages.append(body)
        self.times.append(self.now)

    @rule(name=st.sampled_from([b"a", b"b"]))
    def store_offset(self, name: bytes) -> None:
        offset = self.random.randint(0, len(self.messages))
        self.at.stream.store_offset(name, offset)
        self.offsets[name] = offset

    @rule(share=st.sampled_from([0.2, 0.7]))
    def keep_less(self, share: float) -> None:
        # What is on the disk depends on the worker: no precondition may look at it.
        stream = self.at.stream
        before = stream.size()
        stream.max_bytes = int(int(before) * share)
        stream.retain(-1)
        assert (
            stream.size() <= stream.max_bytes
            or len(stream.segments) == 1
            or stream.segments[1].first >= stream.committed
        )
        stream.max_bytes = -1
        self.retained()

    @rule(age=st.integers(0, 500))
    def keep_younger(self, age: int) -> None:
        before = self.first
        self.at.stream.retain(self.now - age)
        self.retained()
        assert all(time < self.now - age for time in self.times[before : self.first])

    def retained(self) -> None:
        stream = self.at.stream
        assert stream.first >= self.first
        assert not self.messages or stream.committed == 0 or stream.first <= stream.committed
        self.first = int(stream.first)

    @rule(by=st.integers(-200, 300))
    def time_passes(self, by: int) -> None:
        if by < 0:
            # A chunk has the time at which it is closed: what waits must not get one before its messages'.
            self.sync()
        self.now += by
        self.at.now = self.now

    # What the machine does

    @rule()
    def turn(self) -> None:
        self.at.step()

    @rule()
    def hold_syncs(self) -> None:
        """What is written from now on is not on the disk before it is synced again."""
        self.at.disk.go_on.clear()
        self.at.step()

    @rule()
    def sync(self) -> None:
        self.at.disk.room = None
        self.at.disk.go_on.set()
        self.at.settle()
        assert self.at.stream.committed == len(self.messages)

    @rule(room=st.integers(0, 6000))
    def run_out_of_room(self, room: int) -> None:
        self.at.disk.room = room
        self.at.step()

    @rule()
    def restart(self) -> None:
        self.at.disk.room = None
        self.at.disk.go_on.set()
        self.open(self.at.close())
        assert not self.at.found.damage or self.damaged
        assert self.at.stream.offsets == self.offsets
        self.recovered(len(self.messages))

    @rule()
    def crash(self) -> None:
        confirmed = int(self.at.stream.committed)
        self.open(self.at.kill())
        self.recovered(confirmed)

    @rule()
    def cut_power(self) -> None:
        confirmed = int(self.at.stream.committed)
        after = self.at.disk.cut_power(self.random)
        self.at.end()
        self.open(after)
        self.recovered(confirmed)

    @rule()
    def damage(self) -> None:
        """A byte of a segment flips that is not the last one."""
        self.sync()
        paths = self.at.paths()[:-1]
        if not paths:
            return
        node = self.at.disk.nodes[self.random.choice(paths)]
        at = self.random.randrange(len(node.content))
        for content in (node.content, node.synced):
            if at < len(content):
                content[at] ^= 1 << self.random.randrange(8)
        self.damaged = True

    def recovered(self, confirmed: int) -> None:
        stream = self.at.stream
        there = int(stream.next_offset)
        assert confirmed <= there <= len(self.messages)
        for group in self.groups:
            assert there <= group.start or there >= group.stop, "half a transaction"
        del self.messages[there:]
        del self.times[there:]
        self.groups = [group for group in self.groups if group.stop <= there]
        # What was to be removed when the power was cut may be there again.
        assert stream.first <= self.first or self.damaged or stream.first <= there
        self.first = int(stream.first)
        for name, offset in stream.offsets.items():
            assert offset >= 0
            self.offsets[name] = offset
        self.offsets = dict(stream.offsets)
        self.check(BY_OFFSET, self.first)

    # What readers see

    @rule(share=st.floats(0, 1))
    def read_from_an_offset(self, share: float) -> None:
        committed = int(self.at.stream.committed)
        self.check(BY_OFFSET, self.first + int((committed - self.first) * share))

    @rule(share=st.floats(0, 1))
    def read_from_a_time(self, share: float) -> None:
        if not self.times:
            return
        time = int(self.times[0] + (self.now - self.times[0]) * share)
        found = self.at.read(BY_TIME, time)
        wanted = [n for n in range(self.first, int(self.at.stream.committed)) if self.times[n] >= time]
        if not self.damaged:
            assert set(wanted) <= set(found)
        for offset, body in found.items():
            assert self.messages[offset] == body

    def check(self, how: int, start: int) -> None:
        node = self.at
        committed = int(node.stream.committed)
        node.damage.clear()
        found = node.read(how, start)
        for offset, body in found.items():
            assert self.messages[offset] == body
        missing = set(range(max(start, self.first), committed)) - set(found)
        if not self.damaged:
            assert not missing, f"lost: {sorted(missing)[:5]} of {start} to {committed}"
            assert not node.damage, node.damage
        elif missing:
            assert node.damage

    def teardown(self) -> None:
        if self.node is not None and self.node in self.node.running:
            self.node.kill()


TestStreamLog = StreamMachine.TestCase
TestStreamLog.settings = settings(
    max_examples=examples(80),
    stateful_step_count=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
