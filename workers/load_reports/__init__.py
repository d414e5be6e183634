"""The load that an engine itself reports, on request or by publishing it.

Read engine_loads.py first (the value, and what engines answer when asked), then load_subscriber.py (what SGLang
publishes).
"""
