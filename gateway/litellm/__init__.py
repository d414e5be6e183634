"""Moving in from LiteLLM: what it keeps, as values of ours, and what has no place here.

Read: moved, config, tables.
"""
