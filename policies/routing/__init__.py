"""Routing policies: each ranks the workers that may serve one request, best first.

Read protocol.py first (what a policy is given and returns), then estimate.py and cost.py (the default policy).
"""
