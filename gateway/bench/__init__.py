"""Benchmarks: sends requests to a running server and measures the answers, and reports results of simulations."""
