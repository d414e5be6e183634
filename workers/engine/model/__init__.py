"""The decoder-only transformer, its linear layers, plain and quantised, and the loading of its weights.

decoder               the model; rope rotates its queries and keys
linear                linear layers; quantization: with INT8 and INT4 weights; packed_weights and row_counts: faster
                      products on CPUs
weight_loading        reads a checkpoint by tensor_files; quantised_checkpoint: of AWQ and GPTQ
lora, lora_loading    LoRA adapters
"""
