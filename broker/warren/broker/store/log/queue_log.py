"""A queue's handle in the log: its messages, and those of them appended and acknowledged since the last batch."""

from __future__ import annotations

from mypy_extensions import i64

from warren.broker.store.log.live_messages import LiveMessages
from warren.broker.store.sequence_ranges import NONE, merge_ranges


class QueueLog:
    """Handle of a queue in the log: the messages still in the queue, and its changes since the last batch of records.

    :param incarnation: the number that names the queue in the log's records. No other queue of the data folder has it,
        not even one of the same name that is declared later.
    """

    def __init__(self, incarnation: i64) -> None:
        self.incarnation = incarnation
        self.live = LiveMessages()
        self.dropped = False
        """True if the queue is deleted."""
        self.has_changes = False
        """True if the queue has messages, acknowledgements or delivery counts to write in the next batch."""
        self.added_first: i64 = 0
        self.added_last: i64 = NONE
        """Last sequence number of the range `added_first` to `added_last`, which grows with each message appended.

        NONE if there is no such range.
        """
        self.added_bytes: i64 = 0
        """Bytes that appended messages take in the log that are not counted in `live` yet."""
        self.added: list[int] = []
        """Ranges of messages appended before `added_first`: first, last, first, last, ..."""
        self.written: i64 = 0
        """Number of messages written since the start of the process."""
        self.ended_first: i64 = 0
        self.ended_last: i64 = NONE
        """Last sequence number of the range `ended_first` to `ended_last`, which grows with each acknowledgement.

        NONE if there is no such range.
        """
        self.ended: list[int] = []
        """Ranges of messages acknowledged before those from `ended_first` on: first, last, first, last, ..."""
        self.unwritten_counts: dict[int, int] = {}
        """Delivery counts that have yet to be written, by the sequence number of the message."""
        self.counts: dict[int, int] = {}
        """Delivery counts (other than 0) of messages still in the queue, by their sequence number."""
        self.copies: dict[int, int] = {}
        """Log positions of messages that compaction copied to segments without an index, by sequence number."""
        self.spilled_copies: set[int] = set()
        """Sequence numbers of the copies by compaction that do not outlive the process (messages only paged out)."""

    def begin_added_range(self, sequence: i64) -> None:
        """Begin a new range of appended messages with this sequence number, which does not follow the last one."""
        if self.added_last != NONE:
            self.added.append(self.added_first)
            self.added.append(self.added_last)
        self.added_first = sequence
        self.added_last = sequence

    def begin_ended_range(self, sequence: i64) -> None:
        """Begin a new range of acknowledged messages with this sequence number, which does not follow the last one."""
        if self.ended_last != NONE:
            self.ended.append(self.ended_first)
            self.ended.append(self.ended_last)
        self.ended_first = sequence
        self.ended_last = sequence

    def take_added(self) -> list[int]:
        """Return the sequence numbers appended since the last call, as ranges: first, last, first, last, ..."""
        ranges = self.added
        if self.added_last != NONE:
            ranges.append(self.added_first)
            ranges.append(self.added_last)
        self.added = []
        self.added_last = NONE
        at: i64 = 0
        while at < len(ranges):
            self.written += ranges[at + 1] - ranges[at] + 1
            at += 2
        return ranges

    def ended_ranges(self) -> list[int]:
        """Return the sequence numbers acknowledged since the last batch, in ordered ranges: first, last, first, ..."""
        if not self.ended:
            return [self.ended_first, self.ended_last] if self.ended_last != NONE else []
        if self.ended_last != NONE:
            self.ended.append(self.ended_first)
            self.ended.append(self.ended_last)
            self.ended_last = NONE
        merged = merge_ranges(self.ended)
        self.ended = merged
        return merged[:]

    def forget_ended(self) -> None:
        """Forget the acknowledged sequence numbers, because they are recorded in the current batch."""
        self.ended = []
        self.ended_last = NONE

    def end_messages(self, ranges: list[int], batch: i64) -> None:
        """Mark messages as no longer live, because they have left the queue, and forget their delivery counts.

        :param ranges: their sequence numbers as ranges: first, last, first, last, ...
        :param batch: number of the batch of records with their acknowledgements: the segments of the messages are not
            deleted before that batch is on disk. 0 if the segments need not wait for it.
        """
        self.live.remove(ranges, batch)
        if self.counts:
            at: i64 = 0
            while at < len(ranges):
                first: i64 = ranges[at]
                last: i64 = ranges[at + 1]
                if last - first < len(self.counts):
                    for sequence in range(first, last + 1):
                        self.counts.pop(sequence, 0)
                else:
                    self.counts = {s: n for s, n in self.counts.items() if s < first or s > last}
                at += 2


__all__ = ["QueueLog"]
