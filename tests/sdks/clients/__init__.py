"""Clients that people run, unchanged and with their default settings, against a gateway."""
