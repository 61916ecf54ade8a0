"""Dead-lettering and the x-death history."""
