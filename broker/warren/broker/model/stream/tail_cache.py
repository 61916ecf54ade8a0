"""Cache of a stream's newest chunks (batches of messages), so that consumers at the end of the stream read no file."""

from __future__ import annotations

from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.stream.chunk_format import Chunk

MOST: Final = 2 * 1024 * 1024
"""Bytes of chunks that the cache keeps at most. Beyond that, the older half is dropped."""


class StreamTail:
    """Newest chunks of a stream, in order and without a gap."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._bytes: i64 = 0

    def add(self, chunks: list[Chunk]) -> None:
        """Add chunks that were just written.

        If offsets are missing between the cached chunks and the new ones, drop the cached ones.
        """
        for chunk in chunks:
            kept = self._chunks
            if not chunk.payload or (kept and kept[-1].first + kept[-1].count != chunk.first):
                self.clear()
                kept = self._chunks
            if chunk.payload:
                kept.append(chunk)
                self._bytes += len(chunk.payload)
        if self._bytes > MOST:
            self._shrink()

    def find(self, offset: i64) -> Optional[Chunk]:  # noqa: UP045
        """Return the chunk that contains an offset; None if it is older than the cache or not written yet."""
        chunks = self._chunks
        if not chunks or offset < chunks[0].first or offset >= chunks[-1].first + chunks[-1].count:
            return None
        low: i64 = 0
        high: i64 = len(chunks) - 1
        while low < high:
            middle: i64 = (low + high + 1) // 2
            if chunks[middle].first <= offset:
                low = middle
            else:
                high = middle - 1
        return chunks[low]

    def clear(self) -> None:
        """Drop all chunks from the cache."""
        self._chunks = []
        self._bytes = 0

    def _shrink(self) -> None:
        gone = 0
        # The last chunk stays, whatever its size: all consumers at the end read it next.
        while self._bytes > MOST // 2 and gone < len(self._chunks) - 1:
            self._bytes -= len(self._chunks[gone].payload)
            gone += 1
        del self._chunks[:gone]


__all__ = ["StreamTail"]
