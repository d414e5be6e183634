"""Which model and which service class a request gets.

catalogue.py holds the models, aliases.py their other names, model_selection.py chooses among a model's splits and
fallbacks, and service_classes.py finds the service class.
"""
