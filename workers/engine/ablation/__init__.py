"""From the naive to the modern, one idea at a time: the same requests on every rung, and what each idea brings.

rungs     what a rung is: the settings of the one below, and one of them changed
traffic   the requests: mixed lengths, shared beginnings, arriving over time
climb     runs one rung and measures it
report    the table, the plot, the JSON
"""
