"""Sizes as people write them: `400MB`, `1GiB`, `1048576`, in RabbitMQ's units."""

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
"""https://www.rabbitmq.com/docs/memory#configuring-threshold: `M` and `MiB` are powers of 1024, `MB` of 1000."""


def parse_size(text: str) -> int:
    """Bytes.

    :raises ValueError: if it is no size.
    """
    found = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", text)
    unit = UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is no size: write bytes, or a number with kB, MB, GB, KiB, MiB or GiB")
    return int(found[1]) * int(unit)
