"""Message handlers: decorators, signatures and registration."""
