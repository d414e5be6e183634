"""What exact quotas cost, and that they are exact. Read: cost, race, racer, __main__."""
