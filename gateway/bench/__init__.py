"""Benchmarks: sends requests to a running server and measures the answers, and reports results of simulations.

replay               sends the requests of a trace when they are due; client sends one, trace_prompts writes its
                     text, trace_tenants chooses its tenant
results              statistics of the answers; report shows them, ideal_cache counts how many hits were possible
parallel_trials      runs simulations on all cores; simulation_report shows their results
machine              the facts that every result file has
"""
