"""Benchmarks. They print figures and never fail a build.

Overhead: read overhead, subjects, latency, throughput, stall, report. The prefix index: the package `index`.
"""
