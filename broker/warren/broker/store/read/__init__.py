"""Reading messages back from the log: by log position, and by sequence number in their queue."""
