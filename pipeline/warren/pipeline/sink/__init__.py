"""Sink side: rows of a DataFrame published as messages, each of them confirmed."""
