"""What requests cost Redis and other gateways, counted with 1 to 8 real gateways, beside `radixgate plan-fleet`."""
