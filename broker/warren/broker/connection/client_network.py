"""Network of a client's address, by which limits count clients whose addresses one host can choose from."""

from __future__ import annotations

import ipaddress
from typing import Final

HOST_PREFIX: Final = 64
"""Bits of an IPv6 address that identify its network: one host can have any address with the same ones (RFC 4291)."""


def client_network(address: str) -> str:
    """Return the network of an IP address: the first 64 bits of IPv6, and IPv4 as it is.

    Any other text, such as the empty address of a Unix socket, is returned as it is, too.
    """
    if ":" not in address:
        return address
    try:
        ip = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((ip, HOST_PREFIX), strict=False))
