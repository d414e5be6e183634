"""Arithmetic of a fleet of gateways: what requests cost Redis and the gateways, and which layout bears them."""
