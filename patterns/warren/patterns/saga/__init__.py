"""Sagas: conversations of many messages as typed state machines, whose steps can be undone."""

from warren.patterns.saga.saga import Saga, SagaStatistics
from warren.patterns.saga.steps import (
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
from warren.patterns.saga.story import Story

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
