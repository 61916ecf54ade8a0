"""One client's conversation. No routing rules."""
