"""Routing policies: each ranks the workers that may serve one request, best first.

Read protocol.py first (what a policy is given and returns), then estimate.py (terms that several policies
share) and cost.py (the default policy, which computes all of its estimates in `CostPolicy._route`).
"""
