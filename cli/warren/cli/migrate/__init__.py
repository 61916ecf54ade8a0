"""`warren migrate`: move a running system from one broker to another."""
