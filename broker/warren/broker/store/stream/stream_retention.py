"""Retention of streams: which of the oldest segments may be removed by size or age."""

from __future__ import annotations

from mypy_extensions import i64

from warren.broker.store.stream.stream_segment import StreamSegment


def count_expired_segments(
    segments: list[StreamSegment], max_bytes: i64, not_before: i64, committed: i64
) -> tuple[int, bool]:
    """Return how many of the oldest segments of a stream may be removed now, and whether one more may be soon.

    A segment may be removed if it and the newer ones take more than `max_bytes`, or if all its messages are too old.
    The last segment stays, whatever its age and size.

    :param segments: the stream's segments, oldest first.
    :param max_bytes: greatest size of the stream in bytes; negative for no limit.
    :param not_before: time in milliseconds since 1970; older messages are too old.
    :param committed: the messages below this offset are on disk.
    :return: number of segments to remove; True if the one after them has to be removed, too, but must stay until
        messages of the segment behind it are on disk.
    """
    expired = 0
    total: i64 = 0
    for segment in segments:
        total += segment.size
    while len(segments) - expired > 1:
        oldest = segments[expired]
        following = segments[expired + 1]
        if not ((0 <= max_bytes < total) or oldest.timestamp < not_before):
            break
        if following.first >= committed:
            return expired, True
        total -= oldest.size
        expired += 1
    return expired, False


__all__ = ["count_expired_segments"]
