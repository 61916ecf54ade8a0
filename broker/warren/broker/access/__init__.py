"""Access control: users, passwords, permissions, SASL authentication, and authorization of a connection's operations."""
