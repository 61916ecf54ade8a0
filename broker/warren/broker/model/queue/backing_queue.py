"""Backing queue: a queue's ready messages in the order of their arrival, in memory and on disk.

    published -> Q1 -> Q2 -> delta -> Q3 -> Q4 -> consumed

The parts are those of RabbitMQ's rabbit_variable_queue. Q1 and Q4 hold messages with their content in memory. Q2 and Q3
hold messages whose content is on disk only, or leaves memory as soon as it is on disk. Messages in the delta take no
memory at all. A published message goes to Q4 while Q3 is empty, and to Q1 otherwise: a queue that is consumed as fast
as it is filled uses Q4 only. If Q1 is not empty, neither is Q3. If Q2 is not empty, neither is the delta; if the delta
is not empty, neither is Q3. Requeued messages are kept in a heap of their own, and are taken before all others.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.delta import Delta
from warren.broker.model.queue.discarded_messages import DiscardedMessages
from warren.broker.model.queue.paging import QueuePager

ANY: Final = 255
"""Highest priority that a message can have."""
CHUNK: Final = 256
"""Messages whose contents are read from disk in one step, ahead of their consumption."""
CHUNK_BYTES: Final = 512 * 1024
"""Bytes of message bodies after which a step of reading contents from disk ends early."""
HEAD: Final = 1024
"""Messages at the head of a queue that stay in memory as `Message` objects, even if their content is on disk only."""
MESSAGE_BYTES: Final = 240
"""Approximate bytes of memory that a message takes without its content."""
CONTENT_BYTES: Final = 96
"""Approximate bytes of memory that a content takes beyond its body: header and bytes object."""


class BackingQueue:
    """Ready messages of a queue, or of its priorities from `lowest` to `highest`, in the order of their arrival.

    The docstring of the module explains the parts Q1 to Q4 and the delta, through which a message passes in this order.
    """

    def __init__(self, lowest: i64 = 0, highest: i64 = ANY) -> None:
        self.q1: deque[Message] = deque()
        self.q2: deque[Message] = deque()
        self.q3: deque[Message] = deque()
        self.q4: deque[Message] = deque()
        self.returned: list[tuple[int, Message]] = []
        """Requeued messages, which are taken before all others: a heap of (sequence number, message)."""
        self.paging_out: deque[Message] = deque()
        """Messages whose content is to leave memory as soon as the log has written it to disk."""
        self.delta = Delta(lowest, highest)
        self.read_chunk: i64 = CHUNK
        """Messages whose contents are read from disk in one step."""
        self.delta_keep: i64 = HEAD
        """Messages at the head of the queue that stay in memory as `Message` objects, even without their content."""
        self.pager: Optional[QueuePager] = None  # noqa: UP045
        """Access to the messages on disk; None without a data folder, so that all messages stay in memory."""
        self.lazy = False
        """True in the queue mode lazy: contents are paged out to disk as soon as messages arrive."""
        self.appends_to_q4 = True
        """True if published messages go straight to Q4, the part that is consumed next. The others are then empty."""
        self.count: i64 = 0
        self.bytes: i64 = 0
        """Bytes of the bodies of all messages. RabbitMQ counts the same for x-max-length-bytes."""
        self.resident: i64 = 0
        """Number of messages whose content is in memory."""
        self.resident_bytes: i64 = 0
        """Bytes of the bodies of the messages whose content is in memory."""
        self.persistent: i64 = 0
        """Number of persistent messages."""
        self.persistent_bytes: i64 = 0
        """Bytes of the bodies of the persistent messages."""
        self.disk_reads: i64 = 0
        """Number of message contents that were read from disk since the start."""

    def attach_pager(self, pager: QueuePager) -> None:
        """Set the pager, which writes messages of this queue to disk and reads them back."""
        self.pager = pager

    # -- publishing

    def append(self, message: Message) -> None:
        """Add a published message at the end of the queue."""
        self._add(message)
        self.resident += 1
        self.resident_bytes += message.body_size
        if self.appends_to_q4:
            self.q4.append(message)
        elif not self.lazy or self.q1:
            self.q1.append(message)
        else:
            if self.delta.count:
                self.q2.append(message)
            else:
                self.q3.append(message)
            self._start_page_out(message)

    def reinsert(self, message: Message) -> None:
        """Put a requeued message back. Requeued messages are taken first, in the order of their sequence numbers."""
        heapq.heappush(self.returned, (message.sequence, message))
        self._add(message)
        if message.content:
            self.resident += 1
            self.resident_bytes += message.body_size

    # -- consuming

    def head(self) -> Optional[Message]:  # noqa: UP045
        """Return the message that `take` would remove next; None if the queue is empty.

        Its content may be on disk only; `Message.content` is then empty.
        """
        if self.returned:
            return self.returned[0][1]
        if self.q4:
            return self.q4[0]
        if self.q3:
            return self.q3[0]
        return None

    def take(self) -> Optional[Message]:  # noqa: UP045
        """Remove and return the next message with its content.

        Return None if the queue is empty or the disk cannot be read.
        """
        while True:
            if self.returned:
                message = heapq.heappop(self.returned)[1]
                if not message.content and not self._load_returned(message):
                    return None
                if not message.content:
                    continue
            elif self.q4:
                message = self.q4.popleft()
            elif self._refill():
                continue
            else:
                return None
            self._subtract(message)
            self.resident -= 1
            self.resident_bytes -= message.body_size
            return message

    def remove(self, priority: i64, sequence: i64, place: i64 = -1) -> Optional[Message]:  # noqa: UP045
        """Remove and return one message from any place of the queue, as it is: its content may be on disk only.

        Return None if it is not in the queue, or the disk cannot be read. The log is left as it is: when the removal of a
        stored message is written there, call `delta.removal_written` of its level.

        :param priority: priority of the message; it names the part of a priority queue in which the message is.
        :param place: index in `returned` at which it may be, which saves the search there; -1 if it is not known.
        """
        message: Optional[Message] = None  # noqa: UP045
        for part in (self.q4, self.q3, self.q2, self.q1):
            at = index_in(part, sequence)
            if at >= 0:
                message = part[at]
                del part[at]
                break
        if message is None and self.precedes_unreturned(sequence):
            message = remove_from_heap(self.returned, sequence, place)
        if message is not None:
            message.paging_out = False
            if message.stored:
                self.delta.removed[int(sequence)] = True
            if message.content:
                self.resident -= 1
                self.resident_bytes -= message.body_size
            self._subtract(message)
            if not self.q3 and not self.appends_to_q4:
                self._promote()
        else:
            message = self._remove_from_delta(sequence)
            if message is None:
                return None
            self._subtract(message)
        return message

    def precedes_unreturned(self, sequence: i64) -> bool:
        """Return True if a message that was never delivered would be behind this one: only requeued ones are so early."""
        if self.q4:
            return sequence < self.q4[0].sequence
        return not self.q3 or sequence < self.q3[0].sequence

    def _remove_from_delta(self, sequence: i64) -> Optional[Message]:  # noqa: UP045
        pager = self.pager
        if pager is None or not self.delta.count:
            return None
        message = self.delta.remove(pager, sequence)
        if message is not None and not self.delta.count:
            self.delta.clear()
            self.q3.extend(self.q2)
            self.q2.clear()
        return message

    def take_expired(self, now: i64, limit: i64) -> list[Message]:
        """Remove and return the expired messages at the head.

        :param now: the time in milliseconds since 1970.
        :param limit: the number of messages to remove at most.
        """
        expired: list[Message] = []
        head = self.head()
        while head is not None and head.expires and head.expires <= now and len(expired) < limit:
            message = self.take()
            if message is None:
                break
            expired.append(message)
            head = self.head()
        return expired

    def next_expiry(self) -> i64:
        """Return the time of expiry of the next message, in milliseconds since 1970; 0 if it has none."""
        head = self.head()
        return 0 if head is None else head.expires

    def _load_returned(self, message: Message) -> bool:
        """Read the content of a requeued message that was paged out while it was unacknowledged.

        Return False if the disk cannot be read. A damaged message is discarded and its content stays empty.
        """
        pager = self.pager
        assert pager is not None
        if not pager.load_contents([message]):
            heapq.heappush(self.returned, (message.sequence, message))
            return False
        if message.content:
            self.resident += 1
            self.resident_bytes += message.body_size
            self.disk_reads += 1
        else:
            self._discard_damaged(message)
        return True

    def _refill(self) -> bool:
        """Fill the empty Q4, the part that is consumed next, from Q3. The contents are read from disk.

        Return False if Q3 is empty or the disk cannot be read.
        """
        pager = self.pager
        q3 = self.q3
        while q3:
            assert pager is not None
            chunk: list[Message] = []
            size: i64 = 0
            while q3 and len(chunk) < self.read_chunk and size < CHUNK_BYTES:
                message = q3.popleft()
                message.paging_out = False
                size += message.body_size
                chunk.append(message)
            absent = [message for message in chunk if not message.content]
            if absent and not pager.load_contents(absent):
                q3.extendleft(reversed(chunk))
                return False
            for message in absent:
                if message.content:
                    self.resident += 1
                    self.resident_bytes += message.body_size
                    self.disk_reads += 1
                else:
                    self._discard_damaged(message)
            for message in chunk:
                if message.content:
                    self.q4.append(message)
            if not q3:
                self._promote()
            if self.q4:
                return True
        return len(self.q4) > 0

    def _promote(self) -> None:
        """Fill the empty Q3 from the delta, the messages that are on disk only. If there are none, Q1 becomes Q4.

        Q1 to Q4 are the parts of the queue that the docstring of the module explains.
        """
        while not self.q3 and self.delta.count:
            if not self._read_delta():
                return
        if not self.q3:
            self.q4.extend(self.q1)
            self.q1.clear()
            self.appends_to_q4 = not self.lazy

    def _read_delta(self) -> bool:
        """Move the next messages of the delta (those on disk only) to Q3, read from disk without their contents.

        If the delta is empty then, move the messages in Q2 to Q3 as well. Return False if the disk cannot be read.
        """
        pager = self.pager
        delta = self.delta
        assert pager is not None
        messages = delta.read(pager)
        if messages is None:
            return False
        self.q3.extend(messages)
        if delta.exhausted and delta.count:
            # Their records in the log are damaged. How many of them were persistent is not known: count the rest.
            pager.report_missing(int(delta.count))
            delta.clear()
            self.count = self.bytes = self.persistent = self.persistent_bytes = 0
            for message in self.message_objects():
                self._add(message)
        if not delta.count:
            delta.clear()
            self.q3.extend(self.q2)
            self.q2.clear()
        return True

    def _discard_damaged(self, message: Message) -> None:
        """Discard a message whose record in the log is damaged, and correct the counts."""
        pager = self.pager
        assert pager is not None
        pager.report_damaged(message)
        self._subtract(message)

    def _add(self, message: Message) -> None:
        """Add a message to the counts of all and of persistent messages."""
        self.count += 1
        self.bytes += message.body_size
        if message.persistent:
            self.persistent += 1
            self.persistent_bytes += message.body_size

    def _subtract(self, message: Message) -> None:
        """Subtract a message from the counts of all and of persistent messages."""
        self.count -= 1
        self.bytes -= message.body_size
        if message.persistent:
            self.persistent -= 1
            self.persistent_bytes -= message.body_size

    # -- statistics

    def resident_totals(self) -> tuple[int, int]:
        """Return the number of messages whose content is in memory, and the bytes of their bodies."""
        return int(self.resident), int(self.resident_bytes)

    def persistent_totals(self) -> tuple[int, int]:
        """Return the number of persistent messages, and the bytes of their bodies."""
        return int(self.persistent), int(self.persistent_bytes)

    def disk_reads_total(self) -> int:
        """Return the number of message contents that were read from disk since the start."""
        return int(self.disk_reads)

    # -- paging

    def memory_bytes(self) -> i64:
        """Return the approximate bytes of memory that the messages and their contents take."""
        held: i64 = len(self.q1) + len(self.q2) + len(self.q3) + len(self.q4) + len(self.returned)
        return held * MESSAGE_BYTES + self.resident * CONTENT_BYTES + self.resident_bytes

    def set_lazy(self, lazy: bool) -> None:
        """Switch the queue mode lazy on or off. The next calls of `page_out` page out what is in memory."""
        self.lazy = lazy
        self.appends_to_q4 = not lazy and not self.q3

    def set_delta_keep(self, count: i64) -> None:
        """Set the number of messages at the head of the queue that do not move to the delta.

        They stay in memory as `Message` objects, even if their content is on disk. Messages in the delta are on disk
        only.
        """
        self.delta_keep = count

    def page_out(self, keep: i64, limit: i64) -> i64:
        """Page message contents out to disk until `keep` are left in memory.

        Then move messages whose content is on disk to the delta, where they take no memory. Return the number of
        messages that were paged out or moved, which is at most `limit`.
        """
        pager = self.pager
        if pager is None:
            return 0
        done: i64 = 0
        staying: i64 = self.resident - len(self.paging_out) - keep
        while staying > 0 and done < limit:
            if self.q1:
                message = self.q1.popleft()
                if self.delta.count:
                    self.q2.append(message)
                else:
                    self.q3.append(message)
            elif self.q4:
                message = self.q4.pop()
                self.q3.appendleft(message)
                self.appends_to_q4 = False
            else:
                break
            self._start_page_out(message)
            staying -= 1
            done += 1
        self.release_written()
        if done < limit:
            done += self._to_delta(pager, limit - done)
        return done

    def has_pending_writes(self) -> bool:
        """Return True while contents that are being paged out wait in memory for the log to write them."""
        return bool(self.paging_out)

    def release_written(self) -> None:
        """Drop the contents from memory that are being paged out and have reached the disk."""
        leaving = self.paging_out
        pager = self.pager
        while leaving:
            message = leaving[0]
            if message.paging_out:
                assert pager is not None
                if not pager.is_on_disk(message):
                    break
                self._drop_content(message)
            leaving.popleft()

    def _start_page_out(self, message: Message) -> None:
        """Begin to page out the content of a message.

        It is written to the log, unless the log has it, and leaves memory when it is on disk.
        """
        if not message.content:
            return
        pager = self.pager
        assert pager is not None
        if not message.stored:
            pager.write(message)
        if not self.paging_out and pager.is_on_disk(message):
            self._drop_content(message)
        elif not message.paging_out:
            message.paging_out = True
            self.paging_out.append(message)

    def _drop_content(self, message: Message) -> None:
        message.paging_out = False
        if message.content:
            message.content = b""
            self.resident -= 1
            self.resident_bytes -= message.body_size

    def _to_delta(self, pager: QueuePager, limit: i64) -> i64:
        """Move messages whose content is on disk to the delta, where they take no memory at all.

        Those that are consumed last are moved first. Return the number of moved messages, at most `limit`.
        """
        done: i64 = 0
        before: i64 = pager.indexed_before()
        q2, q3, delta = self.q2, self.q3, self.delta
        if not delta.count and len(q3) > self.delta_keep:
            # The newest messages are in segments that have no index yet: they wait in Q2, behind the delta.
            first = q3[self.delta_keep]
            if first.content or first.log_position >= before:
                pager.request_index()
                return 0
            while not self._indexed(q3[-1], before):
                q2.appendleft(q3.pop())
        while len(q3) > self.delta_keep and done < limit and self._indexed(q3[-1], before):
            delta.prepend(q3.pop())
            done += 1
        while q2 and done < limit and self._indexed(q2[0], before):
            delta.append(q2.popleft())
            done += 1
        if len(q2) > self.delta_keep:
            pager.request_index()
        return done

    def _indexed(self, message: Message, before: i64) -> bool:
        return not message.content and 0 < message.log_position < before

    # -- recovery and deletion

    def level(self, priority: i64) -> BackingQueue:
        """Return the backing queue that holds the messages of a priority.

        Here this is `self`, which holds all messages. A priority queue overrides the method: it has one backing queue
        for each priority.
        """
        return self

    def restore(self, first: i64, last: i64, count: i64, bodies: i64, excluded: dict[int, bool]) -> None:
        """Put the messages that the log has kept into the delta (the part on disk only), when the broker starts.

        :param first: the lowest sequence number.
        :param last: the highest sequence number.
        :param count: the number of messages.
        :param bodies: bytes of their bodies.
        :param excluded: sequence numbers of messages in this range that are elsewhere, such as dead letters to retry.
        """
        delta = self.delta
        delta.first = first
        delta.last = last
        delta.count = count
        delta.bytes = bodies
        delta.excluded = excluded
        self.count = count
        self.bytes = bodies
        self.persistent = count
        self.persistent_bytes = bodies
        self.appends_to_q4 = False
        self._promote()

    def restore_level(
        self, level: BackingQueue, first: i64, last: i64, count: i64, bodies: i64, excluded: dict[int, bool]
    ) -> None:
        """Restore the messages of one priority from the log, when the broker starts.

        :param level: the backing queue of the priority.
        :param first: the lowest sequence number.
        :param last: the highest sequence number.
        :param count: the number of messages.
        :param bodies: bytes of their bodies.
        :param excluded: sequence numbers of messages in this range that are elsewhere, such as dead letters to retry.
        """
        level.restore(first, last, count, bodies, excluded)

    def take_all(self, discarded: DiscardedMessages) -> None:
        """Remove all messages at once, and add them to those that are discarded in slices."""
        if not self.count and not self.paging_out:
            # Without new objects: if 10,000 empty queues are deleted, the garbage collector would search them all at once.
            self.clear()
            return
        discarded.references.append(self.paging_out)
        discarded.returned.append(self.returned)
        discarded.parts.extend((self.q4, self.q3, self.q2, self.q1))
        discarded.deltas.append(self.delta)
        self.paging_out = deque()
        self.returned = []
        self.q1 = deque()
        self.q2 = deque()
        self.q3 = deque()
        self.q4 = deque()
        self.delta = Delta(self.delta.lowest, self.delta.highest)
        self.clear()

    def message_objects(self) -> list[Message]:
        """Return the messages that are in memory, with or without content: all but those in the delta."""
        messages = [pair[1] for pair in self.returned]
        for part in (self.q4, self.q3, self.q2, self.q1):
            messages.extend(part)
        return messages

    def clear(self) -> None:
        """Remove all messages from memory, and leave the log as it is."""
        for part in (self.q1, self.q2, self.q3, self.q4, self.paging_out):
            part.clear()
        self.returned.clear()
        self.delta.clear()
        self.appends_to_q4 = not self.lazy
        self.count = 0
        self.bytes = 0
        self.resident = 0
        self.resident_bytes = 0
        self.persistent = 0
        self.persistent_bytes = 0


def index_in(part: deque[Message], sequence: i64) -> i64:
    """Return the index of a message in a part of a queue, which is in the order of sequence numbers; -1 if there is none."""
    low = first_from(part, sequence)
    if low < len(part) and part[low].sequence == sequence:
        return low
    return -1


def first_from(part: deque[Message], sequence: i64) -> i64:
    """Return the index of the first message with this sequence number or a higher one; the length if there is none."""
    low: i64 = 0
    high: i64 = len(part)
    while low < high:
        middle = (low + high) // 2
        if part[middle].sequence < sequence:
            low = middle + 1
        else:
            high = middle
    return low


def remove_from_heap(heap: list[tuple[int, Message]], sequence: i64, place: i64) -> Optional[Message]:  # noqa: UP045
    """Remove a message from a heap of (sequence number, message), and return it; None if it is not there.

    :param place: index at which it may be; -1 if it is not known.
    """
    wanted = int(sequence)
    # Below an entry with a higher number there is none with a lower one.
    waiting = [0]
    if 0 <= place < len(heap) and heap[int(place)][0] == wanted:
        waiting = [int(place)]
    while waiting:
        at = waiting.pop()
        if at >= len(heap) or heap[at][0] > wanted:
            continue
        if heap[at][0] == wanted:
            message = heap[at][1]
            last = heap.pop()
            if at < len(heap):
                place_in_heap(heap, at, last)
            return message
        waiting.append(2 * at + 1)
        waiting.append(2 * at + 2)
    return None


def place_in_heap(heap: list[tuple[int, Message]], at: int, entry: tuple[int, Message]) -> None:
    """Put an entry into a heap in the stead of the one at an index, and restore the order of the heap."""
    while at > 0 and entry[0] < heap[(at - 1) // 2][0]:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    while True:
        child = 2 * at + 1
        if child + 1 < len(heap) and heap[child + 1][0] < heap[child][0]:
            child += 1
        if child >= len(heap) or entry[0] <= heap[child][0]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry
