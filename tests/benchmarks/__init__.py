"""Benchmarks: figures, never verdicts.

Overhead: read overhead, subjects, latency, throughput, stall, report. The prefix index: the package `index`.
"""
