"""Resequencer: messages are handled in the order of their numbers."""

from warren.patterns.resequencer.numbers import Numbers
from warren.patterns.resequencer.resequencer import Resequencer, ResequencerStatistics

__all__ = ["Numbers", "Resequencer", "ResequencerStatistics"]
