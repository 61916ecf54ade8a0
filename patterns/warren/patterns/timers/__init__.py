"""Timers: messages at a time, every so often, or as a cron expression says."""

from warren.patterns.timers.schedule import At, Cron, Every, Missed, Schedule
from warren.patterns.timers.timers import Listed, Timers, TimersStatistics

__all__ = ["At", "Cron", "Every", "Listed", "Missed", "Schedule", "Timers", "TimersStatistics"]
