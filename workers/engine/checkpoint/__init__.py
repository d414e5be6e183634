"""What a checkpoint directory in Hugging Face's layout says about its model, read from its JSON files."""
