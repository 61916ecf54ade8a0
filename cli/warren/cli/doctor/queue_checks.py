"""Checks of queues: backlogs, consumers that do not acknowledge, dead-lettering, limits and replication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warren.cli.doctor.finding import Observation, Source, check
from warren.cli.doctor.snapshot import QueueState, Samples, Snapshot
from warren.sdk.planning import QueueRole

LIMITS = ("max-length", "max-length-bytes", "message-ttl", "max-age")


@check(
    "W101",
    "no-consumers",
    Source.COUNTS,
    advice="start the consumer of this queue; if nobody needs it and its messages any more, unbind and delete it",
)
def no_consumers(samples: Samples) -> Iterator[Observation]:
    """Find queues with messages that nobody consumes.

    Streams, dead letter queues and other queues of Warren's own have no consumers by design.
    """
    dead_letters = samples.last.dead_letter_queues()
    for queue in samples.last.queues:
        is_by_design = (
            queue.type == "stream" or samples.last.role(queue) is not None or queue.name in dead_letters
        )
        if queue.ready and not queue.consumers and not is_by_design:
            yield _subject(queue), f"{queue.ready} messages are ready, and there is no consumer", queue.oldest


@check(
    "W102",
    "growing",
    Source.COUNTS,
    Source.GROWTH,
    advice="add consumers, raise their prefetch or concurrency, make the handler faster, or slow the publishers down",
)
def growing(samples: Samples) -> Iterator[Observation]:
    """Find queues with consumers whose number of ready messages grows from snapshot to snapshot, and never falls."""
    for name, states in samples.queues().items():
        counts = [state.ready for state in states]
        # A broker may report the same numbers for some seconds: RabbitMQ collects its statistics every 5 s.
        grows = counts[0] < counts[-1] and counts == sorted(counts)
        if grows and states[-1].consumers and states[-1].type != "stream":
            rate = (counts[-1] - counts[0]) / max(samples.seconds, 0.001)
            yield (
                f"queue {name}",
                f"{counts[0]} to {counts[-1]} ready messages in {samples.seconds:.1f} s ({rate:+.1f}/s), with"
                f" {states[-1].consumers} consumers",
                states[-1].oldest,
            )


@check(
    "W103",
    "not-acknowledging",
    Source.QUEUES,
    Source.CLIENTS,
    Source.GROWTH,
    advice="find out where its handler hangs (a call without a timeout, a lock, a blocked event loop), or whether the"
    " program forgets basic.ack",
)
def not_acknowledging(samples: Samples) -> Iterator[Observation]:
    """Find consumers whose prefetch is exhausted for the whole time, while messages wait for them."""
    queues = samples.queues()
    unacked = [{each.id: each.unacked for each in snapshot.channels} for snapshot in samples.all]
    clients = {each.id: each for each in samples.last.connections}
    channels = {each.id: each for each in samples.last.channels}
    for consumer in samples.last.consumers:
        states = queues.get(consumer.queue)
        if (
            states is None
            or not consumer.acknowledges
            or not consumer.prefetch
            or states[-1].type == "stream"
        ):
            continue
        held = [counts.get(consumer.channel) for counts in unacked]
        waiting = [state.ready for state in states]
        full = all(count is not None and count >= consumer.prefetch for count in held)
        if full and len(set(held)) == 1 and waiting[0] and waiting[-1] >= waiting[0]:
            channel = channels[consumer.channel]
            client = clients.get(channel.connection)
            who = f"{client.client or client.name} from {client.address}" if client else consumer.channel
            yield (
                f"consumer {consumer.tag} of queue {consumer.queue}",
                f"{who} holds {held[-1]} unacknowledged messages (prefetch {consumer.prefetch}) and acknowledged none in"
                f" {samples.seconds:.1f} s, while {waiting[-1]} wait",
                states[-1].oldest,
            )


@check(
    "W104",
    "no-dead-letter-exchange",
    Source.QUEUES,
    Source.EXCHANGES,
    advice="set x-dead-letter-exchange, or a policy with dead-letter-exchange and --apply-to queues; the SDK's Queue has one"
    " by default",
)
def no_dead_letter_exchange(samples: Samples) -> Iterator[Observation]:
    """Find durable queues that drop what is rejected, expired or over a limit."""
    dead_letters = samples.last.dead_letter_queues()
    for queue in samples.last.queues:
        is_last = samples.last.role(queue) is not None or queue.name in dead_letters
        if queue.type == "stream" or queue.temporary or not queue.durable or is_last:
            continue
        if queue.setting("dead-letter-exchange") is None:
            yield (
                _subject(queue),
                "has no dead letter exchange: messages that are rejected or expire are deleted",
            )


@check(
    "E105",
    "missing-dead-letter-exchange",
    Source.QUEUES,
    Source.EXCHANGES,
    advice="declare the exchange and bind a dead letter queue to it, or correct the argument or the policy",
)
def missing_dead_letter_exchange(samples: Samples) -> Iterator[Observation]:
    """Find queues whose dead letters go to an exchange or a queue that does not exist: they are deleted.

    A queue with the strategy `at-least-once` keeps them, see `target_missing`.
    """
    for queue in samples.last.queues:
        target = _missing_target(samples.last, queue)
        if target is not None and not _keeps_dead_letters(queue):
            yield _subject(queue), f"dead-letters to {target}, which does not exist"


@check(
    "I106",
    "no-limit",
    Source.QUEUES,
    advice="set max-length or max-length-bytes with overflow reject-publish, best by a policy, so that one queue cannot"
    " fill memory and disk",
)
def no_limit(samples: Samples) -> Iterator[Observation]:
    """Find durable queues without a limit of length, bytes or age; those of Warren's own hold what others let in."""
    found = [
        queue
        for queue in samples.last.queues
        if not queue.temporary
        and samples.last.role(queue) in (None, QueueRole.DEAD_LETTERS)
        and all(queue.setting(name) is None for name in LIMITS)
    ]
    if found:
        messages = sum(queue.ready + queue.unacked for queue in found)
        what = "has no limit" if len(found) == 1 else "have no limit"
        yield _together(found), f"{what} of length, bytes or age ({messages} messages)"


@check(
    "W107",
    "not-replicated",
    Source.QUEUES,
    Source.NODES,
    advice="use a quorum queue (x-queue-type quorum): a new queue under another name, and drain the old one",
)
def not_replicated(samples: Samples) -> Iterator[Observation]:
    """Find durable classic queues in a cluster of several nodes: their messages are on one node."""
    if len(samples.last.nodes) < 2:
        return
    for queue in samples.last.queues:
        mirrored = queue.definition.get("ha-mode") is not None
        if queue.type == "classic" and queue.durable and not queue.temporary and not mirrored:
            yield _subject(queue), f"is a classic queue in a cluster of {len(samples.last.nodes)} nodes"


@check(
    "I108",
    "dead-letters",
    Source.COUNTS,
    advice="`warren dlq groups QUEUE` shows their causes; replay or discard them",
)
def dead_letters(samples: Samples) -> Iterator[Observation]:
    """Find dead letter queues that are not empty."""
    names = samples.last.dead_letter_queues()
    for queue in samples.last.queues:
        if queue.name in names and queue.ready:
            yield _subject(queue), f"{queue.ready} dead letters", queue.oldest


@check(
    "I109",
    "delayed",
    Source.COUNTS,
    advice="nothing needs to be done: they move on when their time has come; deleting the queue would delete them",
)
def delayed(samples: Samples) -> Iterator[Observation]:
    """Find queues in which messages wait for a delay to end: of timers, retries and delayed publishes."""
    found = [
        queue for queue in samples.last.queues if samples.last.role(queue) is QueueRole.DELAY and queue.ready
    ]
    if found:
        yield _together(found), f"{sum(queue.ready for queue in found)} messages are delayed"


@check(
    "W110",
    "target-missing",
    Source.QUEUES,
    Source.EXCHANGES,
    advice="declare it again, with its binding: the messages move there then",
)
def target_missing(samples: Samples) -> Iterator[Observation]:
    """Find queues that keep their dead letters, or delayed messages that are due, because their target does not exist."""
    for queue in samples.last.queues:
        target = _missing_target(samples.last, queue)
        if target is not None and _keeps_dead_letters(queue):
            what = f"{queue.held} messages wait" if queue.held else "its dead letters will wait"
            yield _subject(queue), f"{what} for {target}, which does not exist", queue.oldest


@check(
    "W111",
    "way-deleted",
    Source.COUNTS,
    advice="declare the target again, and move them there: with the page of the broker, or a shovel",
)
def way_deleted(samples: Samples) -> Iterator[Observation]:
    """Find delayed messages whose way to their target somebody has deleted."""
    for queue in samples.last.queues:
        if samples.last.role(queue) is QueueRole.LOST and queue.ready:
            yield (
                _subject(queue),
                f"{queue.ready} delayed messages were kept here, because the queues on their way were deleted",
                queue.oldest,
            )


@check(
    "I112",
    "stopped-reader",
    Source.COUNTS,
    advice="start the reader, which continues there; if the queue is deleted, it begins anew",
)
def stopped_reader(samples: Samples) -> Iterator[Observation]:
    """Find stored positions of readers of streams that do not run."""
    for queue in samples.last.queues:
        if samples.last.role(queue) is QueueRole.POSITION and queue.ready and not queue.consumers:
            yield _subject(queue), "holds the position of a reader of a stream, which does not run"


def _missing_target(snapshot: Snapshot, queue: QueueState) -> str | None:
    """Return the exchange or queue that gets the dead letters of a queue, if it does not exist; otherwise None."""
    exchange, key = queue.setting("dead-letter-exchange"), queue.setting("dead-letter-routing-key")
    if exchange and exchange not in snapshot.exchange_names:
        return f"exchange {exchange!r}"
    if exchange == "" and key and key not in snapshot.queue_names:
        return f"queue {key!r}"
    return None


def _keeps_dead_letters(queue: QueueState) -> bool:
    """Return whether dead letters that nobody takes stay in the queue: with the strategy `at-least-once`, which takes effect
    with the overflow `reject-publish` only (RabbitMQ, "Quorum Queues", At-Least-Once Dead Lettering)."""
    return (
        queue.type == "quorum"
        and queue.setting("dead-letter-strategy") == "at-least-once"
        and queue.setting("overflow") == "reject-publish"
    )


def _together(queues: Sequence[QueueState]) -> str:
    """Return the names of queues as one object of a finding."""
    return f"queue{'s' if len(queues) > 1 else ''} {', '.join(queue.name for queue in queues)}"


def _subject(queue: QueueState) -> str:
    return f"queue {queue.name}"
