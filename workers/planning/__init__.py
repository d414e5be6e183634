"""Calculates how many users a model can serve on some GPUs, without running it.

Read capacity.py first. Its inputs are gpus.py and model_shape.py, which reads a config.json with
attention_shapes.py, mlp_shapes.py and config_values.py; layer_attention.py has what a layer caches,
number_formats.py the bytes of numbers. pool_sizes.py plans disaggregated serving.
"""
