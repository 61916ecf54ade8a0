"""File-system calls of the store, behind an interface in which tests inject disk faults."""
