"""`warren trace`: the story of a message, from captured events."""
