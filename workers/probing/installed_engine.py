"""Finds the abilities of an installed engine in its source code.

Version numbers do not show them, since forks and builds from source number differently.
"""

import logging
import re
import subprocess
from dataclasses import dataclass

log = logging.getLogger(__name__)

SECONDS_MAX = 60.0

_FILES = {"sglang": "srt/disaggregation/kv_events.py", "vllm": "distributed/kv_events.py"}
_READ = """
import importlib.util, pathlib, sys
found = importlib.util.find_spec(sys.argv[1])
print((pathlib.Path(found.origin).parent / sys.argv[2]).read_text(encoding="utf-8"))
"""
_BINDS = {
    "sglang": re.compile(r"^    bind\s*:", re.M),
    "vllm": re.compile(r"""["']tcp://\*:0["']"""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAbilities:
    """Abilities that not every version of an engine has."""

    binds: bool = False
    """Whether it can publish its KV events on a single address (SGLang 0.5.22, vLLM 0.32)."""
    load_feed: bool = False
    """Whether it can publish its load (SGLang 0.5.21)."""


def abilities_of(engine: str, python: str) -> EngineAbilities:
    """Return the abilities of the engine that a Python interpreter has; none if its source cannot be read.

    The source is read, not imported.
    """
    try:
        done = subprocess.run(
            [python, "-c", _READ, engine, _FILES[engine]],
            capture_output=True,
            timeout=SECONDS_MAX,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as err:
        log.debug("%s of %s cannot be read: %s", _FILES[engine], engine, err)
        return EngineAbilities()
    return abilities_in(engine, done.stdout.decode(errors="replace"))


def abilities_in(engine: str, source: str) -> EngineAbilities:
    """Return the abilities that the source text of an engine's KV events module shows."""
    return EngineAbilities(
        binds=_BINDS[engine].search(source) is not None,
        load_feed=engine == "sglang" and "load_publish_endpoint" in source,
    )
