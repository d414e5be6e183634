"""Trains the tiny model that answers in `radixgate demo`."""
