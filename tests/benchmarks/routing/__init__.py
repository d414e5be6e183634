"""What routing policies do on traces, in simulated fleets: `make bench-routing`."""
