"""The operator console in a real browser: `make test-browser`."""
