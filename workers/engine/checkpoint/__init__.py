"""The model's description in the JSON files of a checkpoint directory, in Hugging Face's layout.

json_files reads them. model_spec has the sizes of the model, with rope_spec and quantization_spec; lora_spec those
of an adapter. unsupported_keys names what this engine does not compute.
"""
