"""Reads grammars in a process of its own, so that one which takes for ever, or all memory, can be ended with it.

    stdin    {"kind": "regex", "text": "a+", "whitespace": ...}    one JSON object a line, answered in turn
    stdout   {"grammar": "..."} or {"error": "..."}

A compiler cannot be stopped from outside: a schema of a few kilobytes can keep it busy for hours. What passes here
is compiled once more where it is used. Started as a file, so it imports nothing of this package.
"""

import json
import resource
import signal
import sys

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

MEMORY_BYTES_MAX = 2 * 1024**3
ORPHAN_SECONDS_MAX = 60
"""Whoever waits kills this process much sooner; this is for the case that nobody is left to do it."""


def translate(kind: str, text: str, whitespace: str) -> str:
    """The grammar in llguidance's own form; ValueError or RecursionError when it is malformed."""
    if kind == "json_schema":
        return llguidance.LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_pattern": whitespace}
        )
    if kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(text)
    return llguidance.LLMatcher.grammar_from_lark(text if kind == "lark" else any_to_lark(text))


def tried(kind: str, text: str, whitespace: str) -> dict[str, str]:
    """One answer."""
    try:
        grammar = translate(kind, text, whitespace)
    except Exception as err:  # noqa: BLE001 - a stranger's text, read by a stranger's parser
        return {"error": str(err) or type(err).__name__}
    limits = llguidance.LLParserLimits(verbose_errors=False)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    return {"error": messages[0]} if failed else {"grammar": grammar}


def main() -> None:
    """Until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    for line in sys.stdin:
        # Nobody handles the signal, so it ends the process, wherever it is.
        signal.alarm(ORPHAN_SECONDS_MAX)
        print(json.dumps(tried(**json.loads(line))), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main()
