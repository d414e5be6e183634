"""Imports models and tenants from LiteLLM: its config file (config) and tables (tables), to an import_result."""
