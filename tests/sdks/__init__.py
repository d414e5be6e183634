"""SDKs that are too slow for every run of the tests: `make test-sdks`. tests/sdks/install puts them into .tools."""
