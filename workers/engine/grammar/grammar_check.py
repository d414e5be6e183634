"""The program of the check process: it parses grammars, and can be killed when one takes too long or all memory.

    stdin    {"kind": "regex", "text": "a+", "whitespace": ...}    one JSON object per line, answered in turn
    stdout   {"grammar": "..."} or {"error": "..."}

The compiler cannot be interrupted: a schema of a few kilobytes can keep it busy for hours. A grammar that passes
here is compiled once more in the process that uses it. This file is started as a script, so it imports nothing of
this package.
"""

import json
import re
import resource
import signal
import sys

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

MEMORY_BYTES_MAX = 2 * 1024**3
"""Most memory of the process."""
ORPHAN_SECONDS_MAX = 60
"""The parent kills a slow check much sooner; this limit is for a process that has lost its parent."""

ASCII_CLASSES = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}
_ESCAPE = re.compile(r"\\.", re.DOTALL)


def translate(kind: str, text: str, whitespace: str) -> str:
    """Return the grammar in llguidance's own form. Raises ValueError or RecursionError when it is malformed."""
    if kind == "json_schema":
        return llguidance.LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_pattern": whitespace}
        )
    if kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(_with_ascii_classes(text))
    return llguidance.LLMatcher.grammar_from_lark(text if kind == "lark" else any_to_lark(text))


def _with_ascii_classes(regex: str) -> str:
    """Return a regular expression in which digits and word characters are those of ASCII, as in a JSON Schema.

    A class within a class is their union, so the spelled ones may be anywhere.
    """
    return _ESCAPE.sub(lambda found: ASCII_CLASSES.get(found[0], found[0]), regex)


def check(kind: str, text: str, whitespace: str) -> dict[str, str]:
    """Return the answer to one line: the translated grammar, or the error."""
    try:
        grammar = translate(kind, text, whitespace)
    except Exception as err:  # noqa: BLE001 - a client's text, read by a foreign parser
        return {"error": str(err) or type(err).__name__}
    limits = llguidance.LLParserLimits(verbose_errors=False)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    return {"error": messages[0]} if failed else {"grammar": grammar}


def main() -> None:
    """Answer lines until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    for line in sys.stdin:
        # The signal has no handler, so it ends the process wherever it is.
        signal.alarm(ORPHAN_SECONDS_MAX)
        print(json.dumps(check(**json.loads(line))), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main()
