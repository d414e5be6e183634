"""The workers: `fleet` knows their health, `worker` is one, `loads` and `speeds` how busy and fast they are."""
