"""PROXY protocol, versions 1 and 2: the header with the client's address that a load balancer sends.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt. A listener that is configured for it requires the header of
every connection. If it were optional, anybody who reaches the listener could claim any address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
MAX_TEXT_HEADER: Final = 107
"""Largest header of version 1 in bytes, line end included."""
MAX_BINARY_HEADER: Final = 1024
"""Most bytes accepted behind the first 16 of a version 2 header: 36 for addresses, the rest for extensions."""
ReadExactly = Callable[[int], Awaitable[bytes]]


class ProxyHeaderError(Exception):
    """Missing or malformed PROXY protocol header at the start of a connection. The text is for the log."""


async def read_header(read: ReadExactly) -> str:
    """Read a PROXY protocol header, and return the client's address; empty if the proxy itself is the client.

    :param read: reads an exact number of bytes, so that nothing behind the header is consumed.
    :raises ProxyHeaderError: if there is no header, or it is malformed.
    """
    head = await read(len(SIGNATURE))
    if head == SIGNATURE:
        return await _read_binary(read)
    if head.startswith(b"PROXY "):
        while not head.endswith(b"\r\n"):
            if len(head) >= MAX_TEXT_HEADER:
                raise ProxyHeaderError("a header of version 1 without an end")
            head += await read(1)
        return _parse_text(head)
    raise ProxyHeaderError("no header of the PROXY protocol")


def _parse_text(line: bytes) -> str:
    words = line.decode("ascii", "replace").removesuffix("\r\n").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return ""
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyHeaderError("a malformed header of version 1")
    try:
        address = ipaddress.ip_address(words[2])
    except ValueError:
        raise ProxyHeaderError("a header of version 1 without an address") from None
    if address.version != (4 if words[1] == "TCP4" else 6):
        raise ProxyHeaderError("a header of version 1 whose address is of the other family")
    return str(address)


async def _read_binary(read: ReadExactly) -> str:
    command, family, *size = await read(4)
    length = int.from_bytes(bytes(size))
    if command >> 4 != 2 or command & 15 > 1 or length > MAX_BINARY_HEADER:
        raise ProxyHeaderError("a malformed header of version 2")
    rest = await read(length) if length else b""
    if command & 15 == 0 or family not in (0x11, 0x21):
        # A health check of the proxy, or a client that does not use TCP.
        return ""
    size_of_address = 4 if family == 0x11 else 16
    if length < 2 * size_of_address + 4:
        raise ProxyHeaderError("a header of version 2 without addresses")
    return str(ipaddress.ip_address(rest[:size_of_address]))
