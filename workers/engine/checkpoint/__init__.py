"""The model's description in the JSON files of a checkpoint directory, in Hugging Face's layout."""
