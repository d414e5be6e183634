"""Calculates what requests cost Redis and the gateways, and which layout of a fleet can handle them."""
