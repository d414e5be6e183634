"""`make soak`: a long run that checks that memory stays flat. Read traffic, then lengths, callers, samples."""
