"""Workers that come and go: where they are found, and what the fleet makes of it. Read: source, then discovery."""
