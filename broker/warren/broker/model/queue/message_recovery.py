"""Recovery of a queue's messages from the log at the start of the broker."""

from __future__ import annotations

from warren.broker.model.dead_letter.death_history import REASONS
from warren.broker.model.message_codec import pending_dead_letter_reason
from warren.broker.model.queue.backing_queue import BackingQueue
from warren.broker.model.queue.queue import Queue
from warren.broker.store.log.recovery import RecoveredLevel, RecoveredQueue


def restore_messages(queue: Queue, recovered: RecoveredQueue) -> int:
    """Restore a queue's messages from the log. Return their number.

    Contents stay on disk until they are needed, except those of two kinds: dead letters that no target has accepted
    yet, which wait for a retry again, and messages in a retry delay, which wait for the whole delay again.

    :param recovered: the messages of the queue that the log still holds: for each priority their number and range of
        sequence numbers, and for single messages the number of requeues and the reason of their dead-lettering.
    """
    pager = queue.pager
    assert pager is not None
    queue.next_sequence = recovered.last_sequence + 1
    pager.delivered_before_restart = recovered.delivered
    marks = sorted(recovered.counts.items())
    retries = queue.delayed_retries
    held_back = [
        sequence
        for sequence, mark in marks
        if pending_dead_letter_reason(mark) or (retries is not None and mark > 1)
    ]
    excluded_by_level: dict[BackingQueue, dict[int, bool]] = {}
    left_bytes: dict[BackingQueue, int] = {}
    for sequence in held_back:
        found, _ = pager.read_range(0, 255, sequence, sequence)
        for message in found:
            level = queue.ready.level(message.priority)
            excluded_by_level.setdefault(level, {})[sequence] = True
            left_bytes[level] = left_bytes.get(level, 0) + int(message.body_size)
            pager.load_contents([message])
            reason_number = pending_dead_letter_reason(recovered.counts[sequence])
            if message.content and not reason_number:
                assert retries is not None
                retries.add(message)
            elif message.content:
                reason = REASONS[reason_number - 1]
                queue.vhost.dead_lettering.hold_for_retry(queue, message, reason)
            else:
                pager.report_damaged(message)
    by_level: dict[BackingQueue, list[RecoveredLevel]] = {}
    for part in recovered.levels.values():
        by_level.setdefault(queue.ready.level(part.priority), []).append(part)
        if part.expires:
            queue.expiry.has_seen_expiry = True
    count = 0
    for level, parts in by_level.items():
        excluded = excluded_by_level.get(level, {})
        total = sum(int(part.count) for part in parts)
        count += total
        queue.ready.restore_level(
            level,
            min(int(part.first) for part in parts),
            max(int(part.last) for part in parts),
            total - len(excluded),
            sum(int(part.bodies) for part in parts) - left_bytes.get(level, 0),
            excluded,
        )
    if count:
        queue.vhost.track_memory(queue)
    return count
