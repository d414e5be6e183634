"""Comparisons with other benchmark programs: `make test-bench-aiperf`."""
