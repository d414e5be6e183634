"""Capacity planning by arithmetic: how many users a model on some GPUs can serve; nothing is run.

Read capacity.py first. Its inputs are model_shape.py, which reads a config.json by way of attention_shapes.py,
mlp_shapes.py and config_values.py, with layer_attention.py for what a layer caches, and gpus.py; pool_sizes.py
plans disaggregated serving.
"""
