"""Load on a running gateway, and what came of it. Read: client, results."""
