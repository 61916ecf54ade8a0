"""A classic queue read continuously: each message is on shared storage before it is acknowledged."""
