"""A long run that asks one question: is memory flat? `make soak`. Read first traffic, then callers, samples."""
