"""`make bench-routing`: routing policies on traces, in simulated fleets."""
