"""Message types, their encoding, ids and timestamps."""
