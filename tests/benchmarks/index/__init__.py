"""Figures of the prefix index. Read corpus, match, scripts, snapshot, replicas, memory, growth, report."""
