"""Certificate of a migration: counts and digests of each queue on both sides, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from warren.core.text_escapes import json_text

FORMAT: Final = 1
"""Version of the JSON form."""


@dataclass(frozen=True)
class QueueCertificate:
    """Result for one queue."""

    queue: str
    read: int
    """Messages that were read from the source."""
    confirmed: int
    """Messages that the target has confirmed, and that were then acknowledged at the source."""
    source_digest: str
    """BLAKE2b digest of the confirmed messages as the source has delivered them, in their order."""
    target_digest: str
    """The same of the messages as they were published to the target."""
    left: int
    """Messages that are ready in the queue of the source."""
    possible_copies: int
    """Messages that were published twice because a confirm was lost: the target has one or two of each."""
    expires: bool
    """True if messages of the queue expire, so that some that were read may not have come again after a lost connection."""

    @property
    def holds(self) -> bool:
        """True if all messages of the queue are on the target, unchanged and in order."""
        complete = self.read == self.confirmed or self.expires
        return complete and not self.left and self.source_digest == self.target_digest


@dataclass(frozen=True)
class Certificate:
    """Result of a migration."""

    migration: str
    source: str
    target: str
    started: str
    ended: str
    source_broker: str
    """Product and version."""
    target_broker: str
    source_connections: int
    """Connections of other clients to the source at the end."""
    queues: list[QueueCertificate]
    not_moved: dict[str, str]
    """Queues whose messages were not moved, with the reason."""
    counts: dict[str, int] = field(default_factory=dict)
    """Numbers of this run, such as `recognised`, by name."""

    @property
    def holds(self) -> bool:
        """True if all that should be moved was."""
        return all(queue.holds for queue in self.queues)

    def as_json(self) -> str:
        """Return the certificate as JSON."""
        return json_text(self.as_dict(), indent=2) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as values for JSON output."""
        value: dict[str, Any] = {"format": FORMAT, "holds": self.holds, **asdict(self)}
        for queue, each in zip(self.queues, value["queues"], strict=True):
            each["holds"] = queue.holds
        return value

    def lines(self) -> Iterator[str]:
        """Yield the certificate as lines for a person."""
        yield f"Certificate of migration {self.migration}"
        yield f"from {self.source} ({self.source_broker}) to {self.target} ({self.target_broker})"
        yield f"{self.started} to {self.ended}"
        yield ""
        width = max([5, *(len(queue.queue) for queue in self.queues)])
        yield f"{'queue':<{width}}  {'read':>10}  {'confirmed':>10}  {'left':>6}  {'copies':>6}  digest"
        for queue in self.queues:
            digest = queue.source_digest[:16]
            if queue.source_digest != queue.target_digest:
                digest += f" on the source, {queue.target_digest[:16]} on the target"
            numbers = f"{queue.read:>10}  {queue.confirmed:>10}  {queue.left:>6}  {queue.possible_copies:>6}"
            yield f"{queue.queue:<{width}}  {numbers}  {digest}{'' if queue.holds else '  DOES NOT HOLD'}"
        yield ""
        read, confirmed = (sum(getattr(each, name) for each in self.queues) for name in ("read", "confirmed"))
        copies = sum(queue.possible_copies for queue in self.queues)
        yield f"{len(self.queues)} queues: {read} messages read, {confirmed} confirmed, {copies} possible copies"
        for name, reason in self.not_moved.items():
            yield f"not moved: {name!r}: {reason}"
        if self.source_connections:
            yield f"{self.source_connections} connections of clients to the source are still open"
        yield "holds" if self.holds else "DOES NOT HOLD"
