"""The load that an engine itself reports, on request or by publishing it.

Read engine_loads.py first (the value, and its form in the answers of engines), then load_subscriber.py (what SGLang
publishes).
"""
