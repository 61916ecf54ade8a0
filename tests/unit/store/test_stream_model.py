"""Hypothesis model of a stream through crashes, retention and damage: confirmed messages stay at their offsets."""

from __future__ import annotations

from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.tiers import examples
from tests.unit.store.simulated_disk import Disk
from tests.unit.store.stream_run import StreamRun
from warren.broker.store.stream.chunk_reader import BY_OFFSET, BY_TIME


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)
        self._run: StreamRun | None = None
        self.messages: list[bytes] = []
        """All messages by offset, those removed by retention included."""
        self.groups: list[range] = []
        """Offsets of each transaction."""
        self.first = 0
        self.now = 1000
        self.times: list[int] = []
        """Time of each message."""
        self.offsets: dict[bytes, int] = {}
        self.damaged = False

    @property
    def current(self) -> StreamRun:
        assert self._run is not None
        return self._run

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.open(Disk())

    def open(self, disk: Disk) -> None:
        self._run = StreamRun(disk, now=self.now)
        self._run.stream.segment_size = 4096
        self._run.stream.chunk_size = 2048

    # Calls of the broker

    @rule(count=st.integers(1, 30), size=st.sampled_from([0, 3, 60, 700, 5000]))
    def append(self, count: int, size: int) -> None:
        for _ in range(count):
            self.put(size)

    @rule(count=st.integers(1, 30), size=st.sampled_from([10, 700]))
    def transaction(self, count: int, size: int) -> None:
        first = len(self.messages)
        self.current.log.begin_group()
        for _ in range(count):
            self.put(size)
        self.current.log.end_group()
        self.groups.append(range(first, len(self.messages)))

    def put(self, size: int) -> None:
        body = self.random.randbytes(size)
        assert self.current.stream.next_offset == len(self.messages)
        self.current.append(body)
        self.messages.append(body)
        self.times.append(self.now)

    @rule(name=st.sampled_from([b"a", b"b"]))
    def store_offset(self, name: bytes) -> None:
        offset = self.random.randint(0, len(self.messages))
        self.current.stream.store_offset(name, offset)
        self.offsets[name] = offset

    @rule(share=st.sampled_from([0.2, 0.7]))
    def keep_less(self, share: float) -> None:
        # The state of the disk depends on the writer thread: no precondition may read it.
        stream = self.current.stream
        before = stream.size()
        stream.max_bytes = int(int(before) * share)
        stream.apply_retention(-1)
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
        self.current.stream.apply_retention(self.now - age)
        self.retained()
        # The time of messages that cannot be read is unknown.
        assert self.damaged or all(time < self.now - age for time in self.times[before : self.first])

    def retained(self) -> None:
        stream = self.current.stream
        assert stream.first >= self.first
        assert not self.messages or stream.committed == 0 or stream.first <= stream.committed
        self.first = int(stream.first)

    @rule(by=st.integers(-200, 300))
    def time_passes(self, by: int) -> None:
        if by < 0:
            # A chunk gets the time at which it is closed, which must not be before that of its messages.
            self.sync()
        self.now += by
        self.current.now = self.now

    # Events of the machine

    @rule()
    def turn(self) -> None:
        self.current.step()

    @rule()
    def hold_syncs(self) -> None:
        """Hold back syncs until the next `sync`."""
        self.current.disk.syncs_allowed.clear()
        self.current.step()

    @rule()
    def sync(self) -> None:
        self.current.disk.free_bytes = None
        self.current.disk.syncs_allowed.set()
        self.current.sync_all()
        assert self.current.stream.committed == len(self.messages)

    @rule(room=st.integers(0, 6000))
    def run_out_of_room(self, room: int) -> None:
        self.current.disk.free_bytes = room
        self.current.step()

    @rule()
    def restart(self) -> None:
        self.current.disk.free_bytes = None
        self.current.disk.syncs_allowed.set()
        self.open(self.current.close())
        assert not self.current.found.damage or self.damaged
        assert self.current.stream.offsets == self.offsets
        self.recovered(len(self.messages))

    @rule()
    def crash(self) -> None:
        confirmed = int(self.current.stream.committed)
        self.open(self.current.kill())
        self.recovered(confirmed)

    @rule()
    def cut_power(self) -> None:
        confirmed = int(self.current.stream.committed)
        after = self.current.disk.cut_power(self.random)
        self.current.end()
        self.open(after)
        self.recovered(confirmed)

    @rule()
    def damage(self) -> None:
        """Flip a bit in a segment that is not the last one."""
        self.sync()
        paths = self.current.paths()[:-1]
        if not paths:
            return
        run = self.current.disk.files[self.random.choice(paths)]
        at = self.random.randrange(len(run.content))
        for content in (run.content, run.synced):
            if at < len(content):
                content[at] ^= 1 << self.random.randrange(8)
        self.damaged = True

    def recovered(self, confirmed: int) -> None:
        stream = self.current.stream
        there = int(stream.next_offset)
        assert confirmed <= there <= len(self.messages)
        for group in self.groups:
            assert there <= group.start or there >= group.stop, "half a transaction"
        del self.messages[there:]
        del self.times[there:]
        self.groups = [group for group in self.groups if group.stop <= there]
        # Segments that were being removed when the power was cut may exist again.
        assert stream.first <= self.first or self.damaged or stream.first <= there
        self.first = int(stream.first)
        for name, offset in stream.offsets.items():
            assert offset >= 0
            self.offsets[name] = offset
        self.offsets = dict(stream.offsets)
        self.check(BY_OFFSET, self.first)

    # Reads

    @rule(share=st.floats(0, 1))
    def read_from_an_offset(self, share: float) -> None:
        committed = int(self.current.stream.committed)
        self.check(BY_OFFSET, self.first + int((committed - self.first) * share))

    @rule(share=st.floats(0, 1))
    def read_from_a_time(self, share: float) -> None:
        if not self.times:
            return
        time = int(self.times[0] + (self.now - self.times[0]) * share)
        found = self.current.read(BY_TIME, time)
        wanted = [n for n in range(self.first, int(self.current.stream.committed)) if self.times[n] >= time]
        if not self.damaged:
            assert set(wanted) <= set(found)
        for offset, body in found.items():
            assert self.messages[offset] == body

    def check(self, how: int, start: int) -> None:
        run = self.current
        committed = int(run.stream.committed)
        run.damage.clear()
        found = run.read(how, start)
        for offset, body in found.items():
            assert self.messages[offset] == body
        missing = set(range(max(start, self.first), committed)) - set(found)
        if not self.damaged:
            assert not missing, f"lost: {sorted(missing)[:5]} of {start} to {committed}"
            assert not run.damage, run.damage
        elif missing:
            assert run.damage

    def teardown(self) -> None:
        if self._run is not None and self._run in self._run.running:
            self._run.kill()


TestStreamLog = StreamMachine.TestCase
TestStreamLog.settings = settings(
    max_examples=examples(80),
    stateful_step_count=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
