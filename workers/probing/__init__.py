"""What engines say about themselves: their kind, and which features they offer a gateway.

identification.py finds the kind of an engine; engine_replies.py and doctor.py judge an engine by its answers, and
installed_engine.py by its source code. The health of a worker is in gateway/fleet/circuit_breaker.py.
"""
