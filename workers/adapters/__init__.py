"""Adapters for the kinds of workers: one module per kind, and the HTTP code that they share.

Read ../adapter.py first (the interface), then http.py (the shared part) and openai.py (the simplest kind).
"""
