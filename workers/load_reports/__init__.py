"""The load of an engine by its own account, asked for or published.

Read engine_loads.py first (the value, and what engines answer when asked), then load_subscriber.py (what SGLang
publishes).
"""
