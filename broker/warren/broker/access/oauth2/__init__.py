"""OAuth 2: access tokens (JWT) as credentials, and their scopes as permissions."""
