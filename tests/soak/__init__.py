"""A long run that asks whether memory is flat: `make soak`. Read first traffic, then lengths, callers, samples."""
