"""python -m workers.engine.ablation: the same requests on every rung, a table, and a plot if one is asked for."""

from workers.engine.ablation.command import main

if __name__ == "__main__":
    raise SystemExit(main())
