"""Stand-ins for what a test must control: clocks, workers, engines, identity providers, faulty servers."""
