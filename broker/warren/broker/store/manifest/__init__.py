"""Manifest of the data folder: which segments must exist, and how far each file was synced."""
