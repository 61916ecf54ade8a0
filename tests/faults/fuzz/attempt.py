"""Clients for one case: they send all bytes at once and read the answer of the broker."""

from __future__ import annotations

import contextlib
import json
import socket
import struct

from tests.faults.fuzz.cases import Case
from tests.faults.fuzz.http_cases import HttpCase
from tests.support.frames import END

CONNECTION_CLOSE, CONNECTION_CLOSE_OK, CHANNEL_CLOSE = b"\0\x0a\0\x32", b"\0\x0a\0\x33", b"\0\x14\0\x28"
TORN = -1
GREETING_BACK = b"AMQP\x00\x00\x09\x01"


class HttpAttempt:
    """A connection to the HTTP API that has sent a case."""

    def __init__(self, address: tuple[str, int], case: HttpCase, timeout: float) -> None:
        """:param timeout: seconds for the answer"""
        self.case = case
        self._socket = socket.create_connection(address, timeout)
        # The broker may have closed the connection already.
        with contextlib.suppress(OSError):
            self._socket.sendall(case.data)
            if case.halts:
                self._socket.shutdown(socket.SHUT_WR)

    def answer(self) -> str:
        """Return the status of the answer, `gone` if there is none, or the body if that is no JSON; close the socket.

        :raises TimeoutError: if the broker does not close the connection
        """
        found = b""
        with self._socket, contextlib.suppress(ConnectionError):
            while piece := self._socket.recv(65536):
                found += piece
        head, _, body = found.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1."):
            return "gone"
        if b"application/json" in head and body:
            try:
                json.loads(body, parse_constant=_refuse_constant)
            except ValueError as error:
                return f"no JSON ({error}): {body[:200]!r}"
        return head[9:12].decode()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


class Attempt:
    """A connection that has sent a case."""

    def __init__(self, address: tuple[str, int], case: Case, timeout: float) -> None:
        """:param timeout: seconds for the answer"""
        self.case = case
        self._socket = socket.create_connection(address, timeout)
        self._data = b""
        try:
            self._socket.sendall(case.data)
            if case.halts:
                self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The broker has already closed the connection.
            pass

    def answer(self) -> str:
        """Return the answer of the broker, as `cases` names it, and close the socket.

        It is `torn frame` if the broker has sent bytes that are no frame.

        :raises TimeoutError: if the broker does not close the connection
        """
        channel = ""
        try:
            while True:
                found = self._frame()
                if found is None:
                    return channel or "gone"
                kind, payload = found
                name = payload[:4]
                if kind == TORN:
                    return "torn frame"
                if kind != 1:
                    continue
                if name == CHANNEL_CLOSE:
                    # The first one counts: a closed channel is not opened again.
                    channel = channel or f"channel {struct.unpack_from('>H', payload, 4)[0]}"
                elif name == CONNECTION_CLOSE:
                    return str(struct.unpack_from(">H", payload, 4)[0])
                elif name == CONNECTION_CLOSE_OK:
                    return channel or "ok"
        except ConnectionError:
            return channel or "gone"
        finally:
            self._socket.close()

    def _frame(self) -> tuple[int, bytes] | None:
        """Return type and payload of the next frame; None at the end of the stream. Without an end, the type is TORN."""
        while True:
            if self._data.startswith(GREETING_BACK):
                self._data = self._data[8:]
            if len(self._data) >= 7:
                kind, _, size = struct.unpack_from(">BHI", self._data)
                if len(self._data) >= 8 + size:
                    payload, end = self._data[7 : 7 + size], self._data[7 + size]
                    self._data = self._data[8 + size :]
                    return (kind if end == END else TORN), payload
            more = self._socket.recv(65536)
            if not more:
                return None
            self._data += more
