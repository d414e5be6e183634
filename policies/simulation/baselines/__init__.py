"""Routing rules of other gateways, re-expressed from what they publish, for comparison in the simulator only.

Tie-breaks and tuned thresholds of the products may differ: a gap of a few percent means nothing.
"""
