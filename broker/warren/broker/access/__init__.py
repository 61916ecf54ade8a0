"""Access control: users, passwords, permissions, SASL authentication, and authorization of clients' operations."""
