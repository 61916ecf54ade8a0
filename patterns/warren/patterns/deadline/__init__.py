"""Deadline: publish a message (the signal) unless an event is recorded in time."""

from warren.patterns.deadline.deadline import Deadline, DeadlineStatistics
from warren.patterns.deadline.rules import DeadlineOutcome

__all__ = ["Deadline", "DeadlineOutcome", "DeadlineStatistics"]
