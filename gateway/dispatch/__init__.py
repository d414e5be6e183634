"""Finds a worker for a request and gets its answer. Read: reservations, worker_acquisition, placement, attempts."""
