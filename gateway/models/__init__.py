"""The models, and the choice of the model and the service class of a request.

catalogue.py has the models, and finds one by its name or alias; aliases.py their other names; model_selection.py
chooses among a model's splits and fallbacks, and service_classes.py finds the service class. model_prices.py has
the prices that the settings name.
"""
