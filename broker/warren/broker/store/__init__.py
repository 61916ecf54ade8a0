"""The node's store: a write-ahead log of messages, the definitions beside it, and the recovery of both."""
