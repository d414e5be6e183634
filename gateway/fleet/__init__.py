"""The workers: `fleet` knows their health, `worker` is one of them, `loads` and `speeds` how busy and fast they are."""
