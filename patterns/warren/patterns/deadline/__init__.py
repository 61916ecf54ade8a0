"""Deadline: publish a signal unless something happens in time."""

from warren.patterns.deadline.deadline import Deadline, DeadlineStatistics
from warren.patterns.deadline.rules import DeadlineOutcome

__all__ = ["Deadline", "DeadlineOutcome", "DeadlineStatistics"]
