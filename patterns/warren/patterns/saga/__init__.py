"""Sagas: processes of many messages as typed state machines, whose steps can be compensated."""

from warren.patterns.saga.history import SagaHistory
from warren.patterns.saga.saga import Saga, SagaStatistics
from warren.patterns.saga.transitions import (
    COMPENSATED,
    COMPENSATING,
    COMPLETED,
    CompensateSaga,
    Compensation,
    CompleteSaga,
    SagaTransition,
    StayInState,
    TransitionTo,
)

__all__ = [
    "COMPENSATED",
    "COMPENSATING",
    "COMPLETED",
    "CompensateSaga",
    "Compensation",
    "CompleteSaga",
    "Saga",
    "SagaHistory",
    "SagaStatistics",
    "SagaTransition",
    "StayInState",
    "TransitionTo",
]
