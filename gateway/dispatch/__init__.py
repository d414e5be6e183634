"""Finds a worker for a request and gets its answer.

Read: reservations (quota is reserved and settled here), acquisition/ (from the ranking to a placement), placement,
attempts (sending, retries), hedged_opening. own_count counts tokens where a worker has not, and costs makes quota's
amounts of them. dispatch holds all parts.
"""
