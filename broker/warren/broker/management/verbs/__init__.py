"""Verbs of the control socket, one module for each subject."""
