"""The log against a plain model, through crashes: what was synced stays, what was acknowledged stays gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.tiers import examples
from tests.unit.store.disk import LOG, Disk
from tests.unit.store.disk import Node as File
from tests.unit.store.node import BLOCK, Node
from warren.broker.store.log.record_format import POSITION_SHIFT
from warren.broker.store.read.record_reader import RecordReader

FIRM = 0
"""The batch of what was there when the log was opened."""

HEADS = (b"", b"exchange, key", b"exchange" * 20)
"""Messages of a queue in a row that begin with the same object share a record."""


@dataclass
class Held:
    """A message of the model: in which batch it was appended, and in which it was acknowledged, if it was."""

    payload: bytes
    batch: int
    group: int = 0
    gone: int | None = None
    gone_group: int = 0
    place: int = 0
    """Where the log said that it will stand; 0 if it did not."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Delivery counts, each with its batch."""


@dataclass
class Together:
    """What holds together: the messages that were added and removed, by queue and sequence."""

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
        self.groups: dict[int, Together] = {}
        self.incarnations = 0
        self.node: Node | None = None
        self.stopped = False
        self.head = b""

    @property
    def at(self) -> Node:
        assert self.node is not None
        return self.node

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.node = Node(Disk(), ())
        for _ in range(3):
            self.add_queue()

    # What the broker does

    @rule()
    @precondition(lambda self: len(self.queues) < 5)
    def add_queue(self) -> None:
        self.incarnations += 1
        self.queues[self.incarnations] = {}
        self.next[self.incarnations] = 1
        self.at.gate.submitted += 1

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
        places = [(incarnation, self.number(incarnation)) for incarnation in targets]
        log = self.at.log
        place = log.fan_out(
            [(log.queue(i), s) for i, s in places], payload[: size // 3], payload[size // 3 :]
        )
        group = self.group(Together(places, []))
        for incarnation, sequence in places:
            self.queues[incarnation][sequence] = Held(payload, log.batch, group, place=int(place))

    @rule(share=st.sampled_from([0.1, 0.5, 0.9, 1.0]), in_order=st.booleans())
    def acknowledge(self, share: float, in_order: bool) -> None:
        live = self.live()
        chosen = (
            live[: int(len(live) * share)] if in_order else self.random.sample(live, int(len(live) * share))
        )
        for incarnation, sequence in chosen:
            self.at.log.acknowledge(self.at.queue(incarnation), sequence)
            self.queues[incarnation][sequence].gone = self.at.log.batch

    @rule()
    def mark(self) -> None:
        live = self.live()
        for incarnation, sequence in self.random.sample(live, min(len(live), 3)):
            held = self.queues[incarnation][sequence]
            count = max([0, *(count for count, _ in held.marks)]) + 1
            self.at.log.record_delivery_count(self.at.queue(incarnation), sequence, count)
            held.marks.append((count, self.at.log.batch))

    @rule(removals=st.integers(0, 4), copies=st.integers(0, 4), size=st.sampled_from([3, 150, 900]))
    @precondition(lambda self: self.queues)
    def dead_letter(self, removals: int, copies: int, size: int) -> None:
        log = self.at.log
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
        group = self.group(Together(added, removed))
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
        gate = self.at.gate
        gate.submitted += 1
        self.dropped[incarnation] = gate.submitted
        self.at.log.drop_queue(self.at.queue(incarnation))
        self.gone_queues[incarnation] = self.queues.pop(incarnation)

    @rule()
    def read_back(self) -> None:
        """What stands in a segment with an index is found by its sequence, wherever it was copied to, and intact."""
        log = self.at.log
        log.request_indexes()
        for incarnation, model in self.queues.items():
            queue = log.queue(incarnation)
            places: dict[int, int] = {}
            first, last = 1, self.next[incarnation]
            while first <= last:
                found, first = log.lookup.find(queue, 0, 255, first, last)
                places.update({sequence: place for sequence, _, place, _, _, _ in found})
            assert list(places) == sorted(places)
            live = {sequence for sequence, held in model.items() if held.gone is None}
            assert {sequence for sequence in live if log.lookup.locate(queue, sequence)} <= places.keys()
            known = sorted(live & places.keys())
            payloads = log.lookup.payloads(queue, [(sequence, places[sequence]) for sequence in known])
            assert payloads == [model[sequence].payload for sequence in known]

    @rule()
    def read_at_their_places(self) -> None:
        """What is written stands where the log said that it would, as long as its segment is there."""
        node = self.at
        fetch = RecordReader(node.recovery.folder, node.disk, node.recovery.identity, BLOCK)
        segments = set(node.disk.segments())
        for incarnation, model in self.queues.items():
            there = [
                (sequence, held.place)
                for sequence, held in model.items()
                if 0 < held.place < node.log.written_position and held.place >> POSITION_SHIFT in segments
            ]
            self.random.shuffle(there)
            for (sequence, place), payload in zip(there, fetch.payloads(incarnation, there), strict=True):
                gone = place >> POSITION_SHIFT not in node.disk.segments()
                assert payload == model[sequence].payload or (payload is None and gone)

    # What the machine does

    @rule()
    def turn(self) -> None:
        self.at.step()

    @rule()
    def commit(self) -> None:
        self.at.gate.commit()

    @rule()
    def sync(self) -> None:
        self.at.disk.room = None
        self.at.gate.commit()
        self.at.settle()

    @rule(share=st.sampled_from([0.5, 0.9, 0.97]), settle=st.booleans())
    @precondition(lambda self: self.queues)
    def churn(self, share: float, settle: bool) -> None:
        """Much comes and much of it goes: segments empty, and what is left in them is copied forward."""
        for _ in range(3):
            for _ in range(4):
                self.publish(10, 60, 0)
            self.sync()
            self.acknowledge(share, in_order=False)
            if settle:
                self.sync()
            else:
                self.at.step()

    @rule(room=st.integers(0, 3000))
    def fill(self, room: int) -> None:
        self.at.disk.room = room
        self.at.step()

    @rule()
    @precondition(lambda self: self.queues)
    def run_out_of_room(self) -> None:
        self.at.disk.room = 500
        self.publish(10, 200, 0)
        # SegmentList that go may make the room that lacks.
        self.at.run_until(lambda: self.at.log.disk_full or self.at.log.unwritten_bytes == 0)

    @rule()
    def free(self) -> None:
        self.at.disk.room = None

    # How it ends

    @rule()
    def power_cut(self) -> None:
        node = self.at
        disk = node.disk.cut_power(self.random)
        node.end()
        self.open(disk, clean=False)

    @rule()
    def kill(self) -> None:
        self.open(self.at.kill(), clean=False)

    @rule()
    def close(self) -> None:
        self.at.disk.room = None
        self.at.gate.commit()
        disk = self.at.close()
        self.open(disk, clean=True)

    # The model

    def put(self, incarnation: int, size: int) -> int:
        log = self.at.log
        sequence = self.number(incarnation)
        if self.random.random() < 0.1:
            self.head = self.random.choice(HEADS)
        content = self.random.randbytes(size)
        place = log.append_message(log.queue(incarnation), sequence, self.head, content)
        self.queues[incarnation][sequence] = Held(self.head + content, log.batch, place=int(place))
        return sequence

    def number(self, incarnation: int) -> int:
        number = self.next[incarnation]
        self.next[incarnation] += 1
        return number

    def group(self, together: Together) -> int:
        number = len(self.groups) + 1
        self.groups[number] = together
        return number

    def live(self) -> list[tuple[int, int]]:
        return [
            (i, s) for i, held in self.queues.items() for s, message in held.items() if message.gone is None
        ]

    def open(self, disk: Disk, clean: bool) -> None:
        before = self.at
        synced, committed = before.log.synced, before.gate.committed
        # A drop that was not committed did not happen: the queue is there again, with all it held.
        for incarnation, change in self.dropped.items():
            if change > committed:
                self.queues[incarnation] = self.gone_queues[incarnation]
        self.node = node = Node(
            disk,
            sorted(self.queues),
            segment_size=self.random.choice([600, 2000, 8000]),
            slack=self.random.choice([0, 3000]),
            batch_size=self.random.choice([300, 1 << 20]),
            preallocate=self.random.choice([0, 100, 5000]),
        )
        assert node.recovery.clean is clean
        if clean:
            assert node.recovery.damage == [], "a clean stop damages nothing"
        for incarnation, model in self.queues.items():
            found = node.recovery.queues[incarnation].messages
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
            assert node.recovery.queues[incarnation].last_sequence >= max(there, default=0)
        self.check_groups({i: {n for n, _, _ in node.recovery.queues[i].messages} for i in self.queues})
        for incarnation, model in self.queues.items():
            recovered = node.recovery.queues[incarnation]
            self.queues[incarnation] = {
                number: Held(payload, FIRM, marks=[(count, FIRM)] if count else [])
                for number, payload, count in recovered.messages
            }
            self.next[incarnation] = max(self.next[incarnation], recovered.last_sequence + 1)
            del model
        self.dropped, self.gone_queues, self.groups = {}, {}, {}

    def check_groups(self, there: dict[int, set[int]]) -> None:
        """A group is on the disk whole or not at all, as far as nothing else ended what it added."""
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
        if self.node is not None:
            assert self.at.failures == []

    def teardown(self) -> None:
        if self.node is not None:
            disk = self.at.disk
            disk.room = None
            self.at.gate.commit()
            self.open(self.at.close(), clean=True)
            self.at.kill()


# Without shrinking: a failure that has to time out would be shrunk for longer than a test may take.
LogMachine.TestCase.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestLogModel = LogMachine.TestCase


def test_a_hole_in_what_was_never_confirmed_is_reported_once() -> None:
    """The disk wrote a batch in any order: its end is there, its beginning is not, and nobody was told of it."""
    state = LogMachine()
    state.start(seed=0)
    state.publish(count=3, size=60, gap=0)
    state.sync()
    disk = state.at.disk
    firm = state.at.written
    disk.go_on.clear()
    state.publish(count=3, size=60, gap=0)
    state.at.run_until(lambda: any(disk.segment(1).content[firm:]))
    torn = disk.kill()
    state.at.end()
    content = torn.segment(1).content
    content[firm : firm + 89] = bytes(89)
    torn.nodes[f"{LOG}/{1:016d}.log"] = File(bytearray(content), content)
    state.open(torn, clean=False)
    hole = [f"segment 1, offset {firm}: 89 bytes are no record"]
    assert state.at.recovery.damage == hole
    assert len(state.live()) == 5, "what stands behind the hole is kept"
    state.publish(count=1, size=60, gap=0)
    state.close()
    assert state.at.recovery.damage == []
    assert len(state.live()) == 6
    state.acknowledge(share=1.0, in_order=True)
    # A segment of its own for the next message: the one with the hole is no longer written to.
    state.publish(count=1, size=9000, gap=0)
    state.sync()
    state.at.run_until(lambda: 1 not in state.at.disk.segments())
    state.close()
    assert state.at.recovery.damage == []
    assert len(state.live()) == 1
    state.teardown()
