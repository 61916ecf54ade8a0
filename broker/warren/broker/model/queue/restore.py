"""Gives a queue back the messages that the log has kept."""

from __future__ import annotations

from warren.broker.model.dead_letter.dead_lettering import REASONS
from warren.broker.model.message_codec import kept_aside
from warren.broker.model.queue.backing_queue import Backing
from warren.broker.model.queue.queue import Queue
from warren.broker.store.log.recovery import RecoveredLevel, RecoveredQueue


def restore_messages(queue: Queue, recovered: RecoveredQueue) -> int:
    """They stay on the disk, except for the first ones; how many they are.

    Dead letters that were kept aside are kept aside again, and what had come back to wait waits anew.
    """
    shelf = queue.shelf
    assert shelf is not None
    queue.next_sequence = recovered.last_sequence + 1
    shelf.delivered = recovered.delivered
    marks = sorted(recovered.counts.items())
    retries = queue.retries
    apart = [sequence for sequence, mark in marks if kept_aside(mark) or (retries is not None and mark > 1)]
    taken: dict[Backing, dict[int, bool]] = {}
    left_bytes: dict[Backing, int] = {}
    for sequence in apart:
        found, _ = shelf.read(0, 255, sequence, sequence)
        for message in found:
            level = queue.waiting.level(message.priority)
            taken.setdefault(level, {})[sequence] = True
            left_bytes[level] = left_bytes.get(level, 0) + int(message.body_size)
            shelf.load([message])
            reason_number = kept_aside(recovered.counts[sequence])
            if message.content and not reason_number:
                assert retries is not None
                retries.hold(message)
            elif message.content:
                reason = REASONS[reason_number - 1]
                queue.vhost.dead_letters.keep_aside(queue, message, reason)
            else:
                shelf.lost(message)
    by_level: dict[Backing, list[RecoveredLevel]] = {}
    for part in recovered.levels.values():
        by_level.setdefault(queue.waiting.level(part.priority), []).append(part)
        if part.expires:
            queue.expiry.used = True
    count = 0
    for level, parts in by_level.items():
        holes = taken.get(level, {})
        total = sum(int(part.count) for part in parts)
        count += total
        queue.waiting.restore_level(
            level,
            min(int(part.first) for part in parts),
            max(int(part.last) for part in parts),
            total - len(holes),
            sum(int(part.bodies) for part in parts) - left_bytes.get(level, 0),
            holes,
        )
    if count:
        queue.vhost.watch(queue)
    return count
