"""Tenant orders: which waiting request of one tenant goes first. Read ../protocol.py for the interface.

fcfs (first come), edf (earliest deadline), hrrn (short prompts first, the default), longest_prefix.
"""
