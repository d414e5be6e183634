"""What probes say about workers: their health over time, and which features an engine offers.

Read health.py first (the health of a worker); engine_replies.py and doctor.py judge an engine by its answers, and
installed_engine.py by its source code.
"""
