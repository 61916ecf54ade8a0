"""Sagas: conversations of many messages as typed state machines, whose steps can be undone."""

from warren.patterns.saga.history import Story
from warren.patterns.saga.saga import Saga, SagaStatistics
from warren.patterns.saga.transitions import (
    COMPENSATED,
    COMPENSATING,
    COMPLETED,
    Compensate,
    Complete,
    Go,
    Stay,
    Transition,
    Undo,
)

__all__ = [
    "COMPENSATED",
    "COMPENSATING",
    "COMPLETED",
    "Compensate",
    "Complete",
    "Go",
    "Saga",
    "SagaStatistics",
    "Stay",
    "Story",
    "Transition",
    "Undo",
]
