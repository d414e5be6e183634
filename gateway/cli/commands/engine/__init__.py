"""The commands that measure the embedded engine, or prepare it."""
