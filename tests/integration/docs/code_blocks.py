"""The code blocks of the README and of the documentation site."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
COMMENT = re.compile(r"\s+#\s.*$|^#.*$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the README and the pages of the site, except those of clients, which tests/sdks/clients runs."""
    folder = ROOT / "docs" / "pages"
    clients = folder / "clients"
    return [ROOT / "README.md", *sorted(page for page in folder.rglob("*.md") if clients not in page.parents)]


def blocks_of(page: Path) -> Iterator[CodeBlock]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        indent = found[1]
        lines = [line.removeprefix(indent) for line in found[3].splitlines(keepends=True)]
        yield CodeBlock(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start()) + 1,
            language=found[2],
            text="".join(lines),
        )


def blocks(language: str) -> list[CodeBlock]:
    """Return all blocks in this language."""
    return [block for page in pages() for block in blocks_of(page) if block.language == language]


def commands_of(block: CodeBlock) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block; the command inside `$(...)` comes first."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    for line in joined.splitlines():
        for inner in re.findall(r"\$\((.*?)\)", line):
            yield shlex.split(inner)
        words = shlex.split(re.sub(r"\$\(.*?\)", "INNER", COMMENT.sub("", line)))
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            yield [word for word in words if word != ">"] if ">" not in words else words[: words.index(">")]
