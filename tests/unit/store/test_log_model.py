"""Hypothesis model of the log through crashes: synced messages stay, acknowledged ones do not come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.tiers import examples
from tests.unit.store.log_run import BLOCK, LogRun
from tests.unit.store.simulated_disk import LOG, Disk, FileState
from warren.broker.store.log.record_format import POSITION_SHIFT
from warren.broker.store.read.record_reader import RecordReader

FIRM = 0
"""Batch of the messages that existed when the log was opened."""

HEADS = (b"", b"exchange, key", b"exchange" * 20)
"""Heads of messages. Successive messages of a queue with the same head object share a record."""


@dataclass
class Held:
    """A message of the model: the batch that appended it, and the batch that acknowledged it, if any."""

    payload: bytes
    batch: int
    group: int = 0
    gone: int | None = None
    gone_group: int = 0
    position: int = 0
    """Log position that the log returned; 0 if it returned none."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Delivery counts, each with its batch."""


@dataclass
class Group:
    """A group: the messages that it adds and removes, by queue and sequence."""

    added: list[tuple[int, int]]
    removed: list[tuple[int, int]]


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)
        self.queues: dict[int, dict[int, Held]] = {}
        self.next: dict[int, int] = {}
        self.dropped: dict[int, int] = {}
        """Incarnations and the change that deletes them."""
        self.gone_queues: dict[int, dict[int, Held]] = {}
        self.groups: dict[int, Group] = {}
        self.incarnations = 0
        self._run: LogRun | None = None
        self.stopped = False
        self.head = b""

    @property
    def current(self) -> LogRun:
        assert self._run is not None
        return self._run

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self._run = LogRun(Disk(), ())
        for _ in range(3):
            self.add_queue()

    # What the broker does

    @rule()
    @precondition(lambda self: len(self.queues) < 5)
    def add_queue(self) -> None:
        self.incarnations += 1
        self.queues[self.incarnations] = {}
        self.next[self.incarnations] = 1
        self.current.gate.submitted += 1

    @rule(count=st.integers(1, 30), size=st.sampled_from([3, 20, 60, 200, 700, 5000]), gap=st.integers(0, 3))
    @precondition(lambda self: self.queues)
    def publish(self, count: int, size: int, gap: int) -> None:
        incarnation = self.random.choice(sorted(self.queues))
        self.next[incarnation] += gap
        for _ in range(count):
            self.put(incarnation, size)

    @rule(size=st.sampled_from([0, 40, 300]))
    @precondition(lambda self: self.queues)
    def fan_out(self, size: int) -> None:
        targets = self.random.sample(sorted(self.queues), self.random.randint(1, len(self.queues)))
        payload = self.random.randbytes(size)
        positions = [(incarnation, self.number(incarnation)) for incarnation in targets]
        log = self.current.log
        position = log.fan_out(
            [(log.queue(i), s) for i, s in positions], payload[: size // 3], payload[size // 3 :]
        )
        group = self.group(Group(positions, []))
        for incarnation, sequence in positions:
            self.queues[incarnation][sequence] = Held(payload, log.batch, group, position=int(position))

    @rule(share=st.sampled_from([0.1, 0.5, 0.9, 1.0]), in_order=st.booleans())
    def acknowledge(self, share: float, in_order: bool) -> None:
        live = self.live()
        chosen = (
            live[: int(len(live) * share)] if in_order else self.random.sample(live, int(len(live) * share))
        )
        for incarnation, sequence in chosen:
            self.current.log.acknowledge(self.current.queue(incarnation), sequence)
            self.queues[incarnation][sequence].gone = self.current.log.batch

    @rule()
    def mark(self) -> None:
        live = self.live()
        for incarnation, sequence in self.random.sample(live, min(len(live), 3)):
            held = self.queues[incarnation][sequence]
            count = max([0, *(count for count, _ in held.marks)]) + 1
            self.current.log.record_delivery_count(self.current.queue(incarnation), sequence, count)
            held.marks.append((count, self.current.log.batch))

    @rule(removals=st.integers(0, 4), copies=st.integers(0, 4), size=st.sampled_from([3, 150, 900]))
    @precondition(lambda self: self.queues)
    def dead_letter(self, removals: int, copies: int, size: int) -> None:
        log = self.current.log
        live = self.live()
        removed = self.random.sample(live, min(removals, len(live)))
        added = []
        log.begin_group()
        for incarnation, sequence in removed:
            log.acknowledge(log.queue(incarnation), sequence)
        for _ in range(copies):
            incarnation = self.random.choice(sorted(self.queues))
            added.append((incarnation, self.put(incarnation, size)))
        log.end_group()
        group = self.group(Group(added, removed))
        for incarnation, sequence in added:
            held = self.queues[incarnation][sequence]
            held.batch, held.group = log.batch, group
        for incarnation, sequence in removed:
            held = self.queues[incarnation][sequence]
            held.gone, held.gone_group = log.batch, group

    @rule()
    @precondition(lambda self: len(self.queues) > 2)
    def drop(self) -> None:
        incarnation = self.random.choice(sorted(self.queues))
        gate = self.current.gate
        gate.submitted += 1
        self.dropped[incarnation] = gate.submitted
        self.current.log.drop_queue(self.current.queue(incarnation))
        self.gone_queues[incarnation] = self.queues.pop(incarnation)

    @rule()
    def read_back(self) -> None:
        """Check that messages in indexed segments are found by sequence, intact, wherever compaction put them."""
        log = self.current.log
        log.request_indexes()
        for incarnation, model in self.queues.items():
            queue = log.queue(incarnation)
            positions: dict[int, int] = {}
            first, last = 1, self.next[incarnation]
            while first <= last:
                found, first = log.lookup.find(queue, 0, 255, first, last)
                positions.update({sequence: position for sequence, _, position, _, _, _ in found})
            assert list(positions) == sorted(positions)
            live = {sequence for sequence, held in model.items() if held.gone is None}
            assert {sequence for sequence in live if log.lookup.locate(queue, sequence)} <= positions.keys()
            known = sorted(live & positions.keys())
            payloads = log.lookup.payloads(queue, [(sequence, positions[sequence]) for sequence in known])
            assert payloads == [model[sequence].payload for sequence in known]

    @rule()
    def read_at_their_places(self) -> None:
        """Check that written messages stand at the position that the log returned, while their segment exists."""
        run = self.current
        fetch = RecordReader(run.recovery.folder, run.disk, run.recovery.identity, BLOCK)
        segments = set(run.disk.segments())
        for incarnation, model in self.queues.items():
            there = [
                (sequence, held.position)
                for sequence, held in model.items()
                if 0 < held.position < run.log.written_position
                and held.position >> POSITION_SHIFT in segments
            ]
            self.random.shuffle(there)
            for (sequence, position), payload in zip(there, fetch.payloads(incarnation, there), strict=True):
                gone = position >> POSITION_SHIFT not in run.disk.segments()
                assert payload == model[sequence].payload or (payload is None and gone)

    # What the machine does

    @rule()
    def turn(self) -> None:
        self.current.step()

    @rule()
    def commit(self) -> None:
        self.current.gate.commit()

    @rule()
    def sync(self) -> None:
        self.current.disk.free_bytes = None
        self.current.gate.commit()
        self.current.sync_all()

    @rule(share=st.sampled_from([0.5, 0.9, 0.97]), settle=st.booleans())
    @precondition(lambda self: self.queues)
    def churn(self, share: float, settle: bool) -> None:
        """Publish and acknowledge much: segments empty, and compaction copies the live messages left in them."""
        for _ in range(3):
            for _ in range(4):
                self.publish(10, 60, 0)
            self.sync()
            self.acknowledge(share, in_order=False)
            if settle:
                self.sync()
            else:
                self.current.step()

    @rule(room=st.integers(0, 3000))
    def fill(self, room: int) -> None:
        self.current.disk.free_bytes = room
        self.current.step()

    @rule()
    @precondition(lambda self: self.queues)
    def run_out_of_room(self) -> None:
        self.current.disk.free_bytes = 500
        self.publish(10, 200, 0)
        # Deleted segments may free the missing room.
        self.current.run_until(lambda: self.current.log.disk_full or self.current.log.unwritten_bytes == 0)

    @rule()
    def free(self) -> None:
        self.current.disk.free_bytes = None

    # Ends of a run

    @rule()
    def power_cut(self) -> None:
        run = self.current
        disk = run.disk.cut_power(self.random)
        run.end()
        self.open(disk, clean=False)

    @rule()
    def kill(self) -> None:
        self.open(self.current.kill(), clean=False)

    @rule()
    def close(self) -> None:
        self.current.disk.free_bytes = None
        self.current.gate.commit()
        disk = self.current.close()
        self.open(disk, clean=True)

    # The model

    def put(self, incarnation: int, size: int) -> int:
        log = self.current.log
        sequence = self.number(incarnation)
        if self.random.random() < 0.1:
            self.head = self.random.choice(HEADS)
        content = self.random.randbytes(size)
        position = log.append_message(log.queue(incarnation), sequence, self.head, content)
        self.queues[incarnation][sequence] = Held(self.head + content, log.batch, position=int(position))
        return sequence

    def number(self, incarnation: int) -> int:
        number = self.next[incarnation]
        self.next[incarnation] += 1
        return number

    def group(self, together: Group) -> int:
        number = len(self.groups) + 1
        self.groups[number] = together
        return number

    def live(self) -> list[tuple[int, int]]:
        return [
            (i, s) for i, held in self.queues.items() for s, message in held.items() if message.gone is None
        ]

    def open(self, disk: Disk, clean: bool) -> None:
        before = self.current
        synced, committed = before.log.synced, before.gate.committed
        # A drop that was not committed did not happen: the queue exists again with all its messages.
        for incarnation, change in self.dropped.items():
            if change > committed:
                self.queues[incarnation] = self.gone_queues[incarnation]
        self._run = run = LogRun(
            disk,
            sorted(self.queues),
            segment_size=self.random.choice([600, 2000, 8000]),
            slack=self.random.choice([0, 3000]),
            batch_size=self.random.choice([300, 1 << 20]),
            preallocate=self.random.choice([0, 100, 5000]),
        )
        assert run.recovery.clean is clean
        if clean:
            assert run.recovery.damage == [], "a clean stop damages nothing"
        for incarnation, model in self.queues.items():
            found = run.recovery.queues[incarnation].messages
            assert [number for number, _, _ in found] == sorted({number for number, _, _ in found})
            there = {number: (payload, count) for number, payload, count in found}
            for sequence, (payload, count) in there.items():
                held = model[sequence]
                assert payload == held.payload
                assert held.gone is None or held.gone > synced, "what was acknowledged came back"
                counts = [count for count, batch in held.marks if batch <= synced]
                assert max(counts, default=0) <= count <= max((c for c, _ in held.marks), default=0)
            for sequence, held in model.items():
                if held.batch <= synced and held.gone is None:
                    assert sequence in there, "what was synced is lost"
            assert run.recovery.queues[incarnation].last_sequence >= max(there, default=0)
        self.check_groups({i: {n for n, _, _ in run.recovery.queues[i].messages} for i in self.queues})
        for incarnation, model in self.queues.items():
            recovered = run.recovery.queues[incarnation]
            self.queues[incarnation] = {
                number: Held(payload, FIRM, marks=[(count, FIRM)] if count else [])
                for number, payload, count in recovered.messages
            }
            self.next[incarnation] = max(self.next[incarnation], recovered.last_sequence + 1)
            del model
        self.dropped, self.gone_queues, self.groups = {}, {}, {}

    def check_groups(self, there: dict[int, set[int]]) -> None:
        """Check that a group is on disk whole or not at all, as far as nothing else ended the messages that it added."""
        for number, group in self.groups.items():
            traces = set()
            for incarnation, sequence in group.added:
                if incarnation in there:
                    held = self.queues[incarnation][sequence]
                    if sequence in there[incarnation]:
                        traces.add(True)
                    elif held.gone is None:
                        traces.add(False)
            for incarnation, sequence in group.removed:
                if incarnation in there:
                    held = self.queues[incarnation][sequence]
                    if sequence in there[incarnation]:
                        traces.add(False)
                    elif held.batch == FIRM:
                        traces.add(True)
            assert len(traces) < 2, f"group {number} is on the disk in part"

    @invariant()
    def unfailed(self) -> None:
        if self._run is not None:
            assert self.current.failures == []

    def teardown(self) -> None:
        if self._run is not None:
            disk = self.current.disk
            disk.free_bytes = None
            self.current.gate.commit()
            self.open(self.current.close(), clean=True)
            self.current.kill()


# Without shrinking: a failure that has to time out would be shrunk for longer than a test may take.
LogMachine.TestCase.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestLogModel = LogMachine.TestCase


def test_a_hole_in_an_unconfirmed_batch_is_reported_once() -> None:
    """The disk wrote the end of an unconfirmed batch and not its beginning."""
    state = LogMachine()
    state.start(seed=0)
    state.publish(count=3, size=60, gap=0)
    state.sync()
    disk = state.current.disk
    firm = state.current.written
    disk.syncs_allowed.clear()
    state.publish(count=3, size=60, gap=0)
    state.current.run_until(lambda: any(disk.segment(1).content[firm:]))
    torn = disk.kill()
    state.current.end()
    content = torn.segment(1).content
    content[firm : firm + 89] = bytes(89)
    torn.files[f"{LOG}/{1:016d}.log"] = FileState(bytearray(content), content)
    state.open(torn, clean=False)
    hole = [f"segment 1, offset {firm}: 89 bytes are not a record"]
    assert state.current.recovery.damage == hole
    assert len(state.live()) == 5, "the messages behind the hole are kept"
    state.publish(count=1, size=60, gap=0)
    state.close()
    assert state.current.recovery.damage == []
    assert len(state.live()) == 6
    state.acknowledge(share=1.0, in_order=True)
    # A segment of its own for the next message: the one with the hole is no longer written to.
    state.publish(count=1, size=9000, gap=0)
    state.sync()
    state.current.run_until(lambda: 1 not in state.current.disk.segments())
    state.close()
    assert state.current.recovery.damage == []
    assert len(state.live()) == 1
    state.teardown()
