"""Parts of a gateway, each put together from its branch of the settings; `gateway/app.py` has the order."""
