"""How busy an engine says it is: asked for (engine_loads.py, read this first), or published by it (load_feed.py)."""
