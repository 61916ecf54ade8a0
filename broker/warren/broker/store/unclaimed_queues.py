"""Queues and streams that a data folder has messages of, although its definitions do not know them.

An incarnation (the number that names a queue in the log) is reserved in the definitions before a queue gets it. Those
below the reserved ones that have no definition belong to deleted queues, and their messages are dead. Records of others
show that the definitions are older than the log. Nobody has deleted those queues, so their messages are kept.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.definition_rows import QueueRow, Snapshot
from warren.broker.store.definitions.definitions_database import ClaimedQueues
from warren.broker.store.definitions.definitions_recovery import DefinitionsLost
from warren.broker.store.errors import StoreError, disk_error
from warren.broker.store.index.index_format import Describe
from warren.broker.store.log.record_format import FIRST_TRANSIENT_INCARNATION
from warren.broker.store.log.recovery import Recovery, recover
from warren.broker.store.stream.chunk_format import parse_segment_name
from warren.wire.field_tables import encode

logger: logging.Logger = logging.getLogger(__name__)

OPTION: Final = "--accept-data-loss"
PREFIX: Final = "recovered-"
"""Beginning of the names of queues that get the messages of unknown queues; their incarnations follow."""
LISTED: Final = 5
"""Most queues and streams that a refusal describes one by one."""
_STREAM: Final = encode({"x-queue-type": "stream"})


class UnclaimedQueues(NamedTuple):
    """Queues and streams that have messages, but no definitions."""

    queues: dict[int, int]
    """Number of messages by incarnation."""
    streams: dict[int, int]
    """Bytes of the segments by incarnation."""

    @property
    def incarnations(self) -> list[int]:
        """All incarnations, in order."""
        return sorted({*self.queues, *self.streams})

    def totals(self) -> str:
        """Return how much there is of them."""
        messages, size = sum(self.queues.values()), sum(self.streams.values())
        parts = []
        if self.queues:
            parts.append(f"{messages} messages of {len(self.queues)} queues")
        if self.streams:
            parts.append(f"{size} bytes of {len(self.streams)} streams")
        return " and ".join(parts) or "no messages of durable queues"


class LogRecovery:
    """Recovery of the log of a data folder, which finds out whether the definitions fit it.

    :param vhost: virtual host of the queues that get the messages of unknown queues.
    :param accept_data_loss: True to make such queues, False to refuse the folder.
    :param routing_of: returns exchange and routing key of an encoded message.
    """

    def __init__(
        self,
        folder: DataFolder,
        vhost: bytes,
        accept_data_loss: bool,
        describe: Describe,
        routing_of: Callable[[bytes], tuple[bytes, bytes]],
    ) -> None:
        self._folder = folder
        self._routing_of = routing_of
        self._vhost = vhost
        self._accepted = accept_data_loss
        self._recover = partial(recover, folder, describe=describe)
        self._recovery: Recovery | None = None
        self._claimed: list[QueueRow] = []

    def claim(self, definitions: Snapshot, first_unknown: int) -> ClaimedQueues:
        """Read the log, and return the rows of new queues that get the messages of unknown ones.

        :param first_unknown: lowest incarnation of which the definitions do not know whether its queue was deleted.
        :raises StoreError: there are such messages, and the loss of their definitions was not accepted; or the disk
            failed. Nothing was removed.
        """
        known = {row.incarnation for row in definitions.queues}
        recovery = self._recover(known, first_unknown=first_unknown)
        found = self._unclaimed(recovery, known, first_unknown)
        if not found.queues and not found.streams:
            self._recovery = recovery
            return ClaimedQueues([], 0)
        if not self._accepted:
            raise self._refusal("the definitions are older than the log", recovery, found)
        names = {row.name for row in definitions.queues if row.vhost == self._vhost}
        for incarnation in found.incarnations:
            if not found.queues.get(incarnation) and incarnation not in found.streams:
                continue
            name = f"{PREFIX}{incarnation}".encode()
            while name in names:
                name += b"-"
            arguments = _STREAM if incarnation in found.streams else b""
            self._claimed.append(
                QueueRow(self._vhost, name, incarnation, auto_delete=False, arguments=arguments)
            )
            logger.error(
                "event=store.queue_recovered queue=%s messages=%d stream_bytes=%d",
                name.decode(),
                found.queues.get(incarnation, 0),
                found.streams.get(incarnation, 0),
            )
        return ClaimedQueues(self._claimed, found.incarnations[-1])

    def refuse(self, lost: DefinitionsLost) -> StoreError:
        """Return the error for a folder whose definitions are lost: one line that counts what the log holds.

        :raises StoreError: the disk failed.
        """
        recovery = self._recover((), first_unknown=1)
        return self._refusal(str(lost), recovery, self._unclaimed(recovery, lost.known, 1))

    def result(self, known: set[int]) -> Recovery:
        """Return the messages of the known queues, once `claim` has been called and its queues are on disk.

        :raises StoreError: the disk failed.
        """
        recovery, self._recovery = self._recovery, None
        if recovery is None:
            recovery = self._recover(known)
        for row in self._claimed:
            # Delivery limits and retries of the unknown queue do not apply to this one.
            recovery.queues[row.incarnation].counts.clear()
        return recovery

    def _unclaimed(self, recovery: Recovery, known: set[int], first_unknown: int) -> UnclaimedQueues:
        queues = {
            incarnation: sum(int(level.count) for level in recovery.queues[incarnation].levels.values())
            for incarnation in recovery.unknown - known
        }
        streams: dict[int, int] = {}
        folder, files = self._folder.streams, self._folder.files
        try:
            for name in files.names(folder):
                parsed = parse_segment_name(name)
                if parsed is None or parsed[0] in known:
                    continue
                if first_unknown <= parsed[0] < FIRST_TRANSIENT_INCARNATION:
                    size = files.size(f"{folder}/{name}")
                    streams[parsed[0]] = streams.get(parsed[0], 0) + size
        except FileNotFoundError:
            pass
        except OSError as error:
            raise disk_error(f"read the streams in {folder}", error) from None
        return UnclaimedQueues(queues, streams)

    def _refusal(self, reason: str, recovery: Recovery, found: UnclaimedQueues) -> StoreError:
        numbers = found.incarnations
        parts = [self._describe(number, recovery, found) for number in numbers[:LISTED]]
        if numbers[LISTED:]:
            parts.append(f"{len(numbers) - LISTED} more")
        listed = f" ({'; '.join(parts)})" if parts else ""
        return StoreError(
            f"cannot use the data folder {self._folder.path}: {reason}; it holds {found.totals()} without "
            f"definitions{listed}. Restore definitions.db and definitions.journal from a backup, or start once with "
            f"{OPTION}: definitions, users and permissions may be lost, and these messages go to durable queues "
            f"{PREFIX}NUMBER"
        )

    def _describe(self, incarnation: int, recovery: Recovery, found: UnclaimedQueues) -> str:
        """Return what tells an operator which queue or stream this was: its name is in the definitions only."""
        if incarnation in found.streams:
            return f"number {incarnation}: a stream of {found.streams[incarnation]} bytes"
        count = found.queues[incarnation]
        first = next(recovery.messages(incarnation), None)
        if first is None:
            return f"number {incarnation}: {count} messages"
        exchange, key = (part.decode(errors="replace") for part in self._routing_of(first[1]))
        origin = f"exchange {exchange!r} and routing key" if exchange else "routing key"
        return f"number {incarnation}: {count} messages, the first with {origin} {key!r}"


def name_queues(reports: Iterable[str], rows: Iterable[QueueRow]) -> list[str]:
    """Return reports of damage with the names of the queues and streams behind their incarnations.

    :param reports: lines with texts such as `queue 5` and `stream 7`: the log knows no names.
    :param rows: definitions of all queues.
    """
    known = {row.incarnation: row for row in rows}

    def name(found: re.Match[str]) -> str:
        row = known.get(int(found[1]))
        if row is None:
            return found[0]
        queue, vhost = row.name.decode(errors="replace"), row.vhost.decode(errors="replace")
        return f"{found[0]} ({queue!r} in {vhost!r})"

    return [re.sub(r"\b(?:queue|stream) (\d+)\b", name, report) for report in reports]


__all__ = ["LogRecovery", "UnclaimedQueues", "name_queues"]
