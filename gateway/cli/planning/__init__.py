"""The commands that only calculate: `radixgate plan` and `radixgate plan-fleet`, with their reports."""
