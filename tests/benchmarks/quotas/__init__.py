"""The cost of exact quotas, and their exactness. Read cost, race, racer, __main__."""
