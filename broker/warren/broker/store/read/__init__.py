"""Reading messages back from the log."""
