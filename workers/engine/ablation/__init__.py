"""The ladder (`radixgate ladder`): measures the gain of each technique of the engine.

The same requests run on seven engines, the rungs. Each has one technique more than the one before.

rungs         the rungs: the settings of the rung below with one setting changed
traffic       the requests: mixed lengths, shared beginnings, arriving over time
measurement   runs the requests on one engine and measures it
kv_waste      how much of the KV pool holds no token
report        the table, the plot and the values for JSON
command       the command line
"""
