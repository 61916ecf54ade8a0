"""Rows of a DataFrame published as messages, each of them confirmed."""
