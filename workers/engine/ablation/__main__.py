"""Runs the ladder without the gateway: python -m workers.engine.ablation prints a table, and can draw a plot."""

from workers.engine.ablation.command import main

if __name__ == "__main__":
    raise SystemExit(main())
