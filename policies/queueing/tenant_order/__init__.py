"""Tenant orders: which waiting request of one tenant goes first. Read ../protocol.py for the interface."""
