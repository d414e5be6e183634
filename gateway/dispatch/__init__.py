"""Finds a worker for a request and gets its answer.

Read: reservations (quota is reserved and settled here), acquisition/ (from the ranking to a placement), placement,
attempts (sending, retries), hedged_opening. dispatch holds all parts.
"""
