"""The fault suite: the connection is cut, half-closed, held up or slowed down at every step of the protocol.

Here each step meets one fault and a few meet all; `python -m tests.faults.soak faults` does the whole matrix.
"""

from __future__ import annotations

import pytest

from tests.sdk.fault_survival import RARER, STEPS, survive
from tests.support.proxy_faults import Fault

CHOSEN = [("to server", "basic.publish"), ("to client", "basic.deliver")]


@pytest.mark.parametrize(("direction", "frame"), STEPS + RARER)
async def test_a_connection_that_is_cut_at_this_step(amqp_url: str, direction: str, frame: str) -> None:
    await survive(amqp_url, direction, frame, Fault.CUT_WITHIN)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.CUT_WITHIN])
@pytest.mark.parametrize(("direction", "frame"), CHOSEN)
async def test_every_fault_at_this_step(amqp_url: str, direction: str, frame: str, fault: Fault) -> None:
    await survive(amqp_url, direction, frame, fault, nth=5)
