"""The settings of an engine: engine_config, with speculation_config and lora_config."""
