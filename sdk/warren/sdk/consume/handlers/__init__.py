"""Message handlers: the `app.handle` decorators, signature checks and registration."""
