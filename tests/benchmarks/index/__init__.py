"""The prefix index in figures: read corpus, match, peers, scripts, snapshot, replicas, memory, growth, report."""
