"""Adapters for the kinds of workers: one module per kind, and the HTTP that they share.

Read ../adapter.py first (the interface), then http.py (what all share) and openai.py (the simplest kind).
"""
