"""The decoder and how a checkpoint becomes one: `spec`, `rope`, `decoder`, `weights`, and smaller: `quant`."""
