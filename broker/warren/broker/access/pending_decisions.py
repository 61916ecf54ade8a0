"""Access decisions that need an answer from elsewhere: an identity provider or an access-control service."""

from __future__ import annotations

import asyncio


class DecisionPending(Exception):
    """Signal that a decision is not known yet. The operation that asked for it is repeated when `answered` is done.

    It is raised before the operation has changed anything. Once `answered` is done, the same question has a decision, if
    only the one that access is denied.

    :param answered: future that is done when the decision is known; it never fails.
    """

    def __init__(self, answered: asyncio.Future[None]) -> None:
        super().__init__("an access decision is pending")
        self.answered = answered
