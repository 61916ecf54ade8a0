"""Attacks: right answers, bounded memory, another client is served meanwhile, and no turn of the event loop is long.

How long that client waits depends on the machine: `make attacks` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import pytest

from tests.faults.attacks.__main__ import judge
from tests.faults.attacks.attack import Attack
from tests.faults.attacks.catalogue import attacks
from tests.faults.attacks.metered_broker import MeteredBroker

pytestmark = pytest.mark.slow

CALLS: Final = 300_000
"""Calls of functions that one turn of the event loop may have: most of them are short ones in C, and take 20 ms together."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    with MeteredBroker(tmp_path_factory.mktemp("attacks"), CALLS) as broker:
        yield broker
        assert broker.child is not None
        assert broker.child.errors == ""


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_an_attack_does_no_harm(attacked: MeteredBroker, attack: Attack) -> None:
    attacked.forget_turns()
    assert judge(attacked, attacked.target, attack, math.inf) == []
    assert attacked.target.api.get("whoami")["name"] == "guest"
    most, stack = attacked.longest_turn()
    assert most <= CALLS, f"a turn had {most:,} calls; {CALLS:,} were reached here:\n{stack}"
