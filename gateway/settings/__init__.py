"""All settings of the gateway: `tree.py` defines the tree, `sources.py` reads it, `checks.py` checks it."""
