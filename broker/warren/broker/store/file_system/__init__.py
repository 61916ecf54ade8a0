"""File-system interface of the store: the seam where tests inject disk faults."""
