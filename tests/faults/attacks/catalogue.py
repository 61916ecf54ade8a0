"""The attacks of all modules of this folder."""

from __future__ import annotations

from typing import Final

from tests.faults.attacks import amqp_strangers, amqp_users, http_strangers, http_users
from tests.faults.attacks.attack import ATTACKS, Attack

MODULES: Final = (amqp_strangers, amqp_users, http_strangers, http_users)


def attacks(pattern: str = "") -> list[Attack]:
    """Return the attacks whose names contain a text."""
    return [each for each in ATTACKS if pattern in each.name]
