"""The sources of the four packages as the rules of the house read them: paths, syntax trees, classes and prose."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "policies", "radix_cache", "workers")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module(path: Path) -> str:
    """Return the dotted name of the module at the path."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of the file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def public_classes() -> Iterator[tuple[str, str]]:
    """Yield the name and the module of every public class at the top of a module."""
    for path in SOURCES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module(path)


def words_of(name: str) -> list[str]:
    """Split a name in CamelCase or snake_case into its words, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@cache
def prose(path: Path) -> tuple[tuple[int, str], ...]:
    """Return the lines of all docstrings and comments of the file, each with its line number."""
    source = path.read_text(encoding="utf-8")
    texts = [
        (node.lineno, node.value.value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return tuple(
        (first + number, line) for first, text in texts for number, line in enumerate(text.split("\n"))
    )


def folders() -> list[str]:
    """Return the path of every folder that holds sources, relative to the root of the repository."""
    return sorted({str(path.parent.relative_to(ROOT)) for path in SOURCES})
