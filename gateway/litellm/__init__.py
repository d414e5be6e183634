"""Imports models, workers, tenants and keys from LiteLLM's config file and from the tables of its database."""
