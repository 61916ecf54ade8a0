"""Timers: messages that are published at a set time, in intervals, or by a cron expression."""

from warren.patterns.timers.schedules import (
    CronSchedule,
    DateSchedule,
    IntervalSchedule,
    MissedPolicy,
    Schedule,
)
from warren.patterns.timers.timers import TimerInfo, Timers, TimersStatistics

__all__ = [
    "CronSchedule",
    "DateSchedule",
    "IntervalSchedule",
    "MissedPolicy",
    "Schedule",
    "TimerInfo",
    "Timers",
    "TimersStatistics",
]
