"""Finds out the kind of an engine, and which features it offers a gateway.

identification.py finds the kind. engine_replies.py and doctor.py find the features in the engine's replies, and
installed_engine.py in its source code. The health of a worker is in gateway/fleet/worker_health.py.
"""
