"""Puts the rooms together from their branches of the settings; `gateway/app.py` has the order."""
