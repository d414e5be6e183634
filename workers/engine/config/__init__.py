"""The settings of an engine, and of its speculative decoding."""
