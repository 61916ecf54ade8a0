"""Methods of a channel that are not on the hot path, by subject; `method_dispatch` finds the one that a frame names."""
