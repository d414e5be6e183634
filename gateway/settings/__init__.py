"""Everything that can be set: `tree.py` shows the whole and its branches; `sources.py` reads it."""
