"""The decoder-only transformer, its linear layers, plain and quantised, and the loading of its weights."""
