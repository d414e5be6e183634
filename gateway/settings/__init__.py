"""All settings of the gateway: `tree.py` is the whole tree, `sources.py` reads it, `checks.py` checks it."""
