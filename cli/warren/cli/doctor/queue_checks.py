"""Checks of queues: backlogs, consumers that do not acknowledge, dead-lettering, limits and replication."""

from __future__ import annotations

from collections.abc import Iterator

from warren.cli.doctor.finding import Observation, Source, check
from warren.cli.doctor.snapshot import QueueState, Samples

LIMITS = ("max-length", "max-length-bytes", "message-ttl", "max-age")


@check(
    "W101",
    "no-consumers",
    Source.COUNTS,
    advice="start the consumer of this queue; if nobody needs it any more, unbind and delete it",
)
def no_consumers(samples: Samples) -> Iterator[Observation]:
    """Find queues with messages that nobody consumes. Dead letter queues and streams have no consumers by design."""
    dead_letters = samples.last.dead_letter_queues()
    for queue in samples.last.queues:
        if queue.ready and not queue.consumers and queue.type != "stream" and queue.name not in dead_letters:
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
        if queue.type == "stream" or queue.temporary or not queue.durable or queue.name in dead_letters:
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
    """Find queues whose dead letters go to an exchange or a queue that does not exist: they are deleted."""
    exchanges = {each.name for each in samples.last.exchanges}
    queues = {each.name for each in samples.last.queues}
    for queue in samples.last.queues:
        exchange, key = queue.setting("dead-letter-exchange"), queue.setting("dead-letter-routing-key")
        if exchange and exchange not in exchanges:
            yield _subject(queue), f"dead-letters to exchange {exchange!r}, which does not exist"
        elif exchange == "" and key and key not in queues:
            yield _subject(queue), f"dead-letters to queue {key!r}, which does not exist"


@check(
    "I106",
    "no-limit",
    Source.QUEUES,
    advice="set max-length or max-length-bytes with overflow reject-publish, best by a policy, so that one queue cannot"
    " fill memory and disk",
)
def no_limit(samples: Samples) -> Iterator[Observation]:
    """Find durable queues without a limit of length, bytes or age."""
    for queue in samples.last.queues:
        if not queue.temporary and all(queue.setting(name) is None for name in LIMITS):
            yield (
                _subject(queue),
                f"has no limit of length, bytes or age ({queue.ready + queue.unacked} messages)",
            )


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


def _subject(queue: QueueState) -> str:
    return f"queue {queue.name}"
