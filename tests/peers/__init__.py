"""Beside programs of others: `make test-bench-aiperf`."""
