"""Capacity planning by arithmetic: how many users a model on some GPUs can serve; nothing is run.

Read capacity.py first; model_shape.py and gpus.py have its inputs, and pool_sizes.py plans disaggregated serving.
"""
