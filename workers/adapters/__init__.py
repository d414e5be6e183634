"""One module per kind of worker; what they share on the wire is in http.py."""
