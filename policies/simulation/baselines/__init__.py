"""Routing rules of other gateways, rewritten from what they publish, for comparison in the simulator only.

Read ordered.py first (what most of them share), then aibrix, dynamo, llmd, preble, sglang. Tie-breaks and tuned
thresholds of the products may differ: a gap of a few percent means nothing.
"""
