"""Listen addresses in configuration settings: host and port."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """Host and port of a listener."""

    host: str
    port: int

    @classmethod
    def parse(cls, setting: str, text: str, host: str) -> Address:
        """Parse the value of a setting: `host:port`, `[host]:port`, or a port.

        :param setting: name of the setting, for the error text.
        :param host: host to use if the value is only a port.
        :raises ValueError: if the value is no address.
        """
        before, _, port = text.strip().rpartition(":")
        before = before.removeprefix("[").removesuffix("]")
        if not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{setting} has {text!r}; an address is host:port, [host]:port, or a port")
        return cls(before or host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
