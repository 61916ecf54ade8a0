"""Complete fault suite: every fault at every step of the protocol, early and late, on Warren and on RabbitMQ."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.sdk.fault_survival import RARER, STEPS, survive
from tests.support.broker_process import BrokerProcess
from tests.support.proxy_faults import Fault
from tests.support.rabbitmq import installed, rabbitmq_server

LATER = 4
"""The frame of its kind that meets the fault in the second round, where there are so many."""
MANY = ("basic.publish", "header", "body", "basic.deliver")


def soak(share: float, random: Random, folder: Path) -> list[str]:
    """Both brokers go through that share of the matrix, chosen at random."""
    matrix = [(*step, fault, nth) for step in STEPS + RARER for fault in Fault for nth in (1, LATER)]
    matrix = [case for case in matrix if case[3] == 1 or case[1] in MANY]
    chosen = random.sample(matrix, max(1, round(len(matrix) * share)))
    figures = []
    with ExitStack() as stack:
        brokers = {"Warren": stack.enter_context(BrokerProcess(folder)).url}
        if installed():
            brokers["RabbitMQ"] = stack.enter_context(rabbitmq_server()).url
        for broker, url in brokers.items():
            for case in chosen:
                try:
                    asyncio.run(survive(url, *case))
                except Exception as error:
                    raise AssertionError(f"{broker}, {case}: {type(error).__name__}: {error}") from error
            figures.append(f"{broker}: {len(chosen)} faults survived of {len(matrix)} in the matrix")
    return figures
