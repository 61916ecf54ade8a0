"""Parser of sizes such as `400MB`, `1GiB` or `1048576`, in RabbitMQ's units."""

from __future__ import annotations

import re
from typing import Final

UNITS: Final = {
    "": 1,
    **{
        letter + suffix: base**power
        for power, letter in enumerate("kmgt", 1)
        for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
    },
}
"""Bytes of each unit: `M` and `MiB` are powers of 1024, `MB` of 1000.

https://www.rabbitmq.com/docs/memory#configuring-threshold
"""


def parse_size(text: str) -> int:
    """Return the number of bytes in a size such as `400MB` (powers of 1000) or `400MiB` or `400M` (powers of 1024).

    :raises ValueError: if the text is not a size
    """
    found = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", text)
    unit = UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with kB, MB, GB, KiB, MiB or GiB")
    return int(found[1]) * int(unit)
