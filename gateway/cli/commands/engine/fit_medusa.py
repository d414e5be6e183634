"""`radixgate fit-medusa`: fits Medusa heads for speculative decoding to a model's own answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.commands.worker import ENGINE_MISSING
from gateway.cli.support.command_error import CommandError
from gateway.demo.demo_processes import TINY_MODEL
from gateway.demo.topics import all_questions
from workers.chat_template import ChatTemplate, TemplateFailed

PROMPTS_MAX = 100_000
DEMO_QUESTIONS = 200
"""Questions that heads for the demo's model are fitted to and evaluated on: some seconds of work."""


def fit_medusa(
    out: Annotated[Path, typer.Option(help="Directory to write the heads to.")],
    model: Annotated[
        Path,
        typer.Option(help="Directory of the model; by default the tiny one of the demo.", show_default=False),
    ] = TINY_MODEL,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="File with a question to the model on each line; by default the questions of the demo.",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[
        int, typer.Option(help="Number of heads, each predicting one token further.", min=1, max=16)
    ] = 4,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=3)] = 48,
    drafts: Annotated[
        int, typer.Option(help="Largest number of draft tokens in the evaluated tree.", min=1, max=32)
    ] = 12,
    held_out: Annotated[
        int | None,
        typer.Option(
            help="Number of questions, from the last, that the heads are evaluated on instead of fitted to; by "
            "default an eighth.",
            show_default=False,
            min=0,
        ),
    ] = None,
) -> None:
    """Fit Medusa heads to a model's own answers.

    The heads propose several tokens for each of the next positions, and one step of the model verifies a whole tree
    of them (`radixgate worker --speculative-method medusa --speculative-draft-model OUT`). Answers stay the same.
    The command prints how often each head is right and how many drafts are accepted, in a chain and in a tree.
    """
    try:
        from workers.engine.errors import EngineError
        from workers.engine.fit_medusa import fit_and_report
        from workers.engine.tokenization.tokenizer import Tokenizer
    except ImportError as err:
        raise CommandError(f"{ENGINE_MISSING} ({err})") from err
    try:
        questions = _questions(prompts)
        tokenizer, template = Tokenizer(model), ChatTemplate.from_directory(model)
        asked = [
            tokenizer.encode(
                template.render([{"role": "user", "content": question}]), add_special_tokens=False
            )
            for question in questions
        ]
        fit_and_report(
            model,
            out,
            asked,
            heads=heads,
            tokens=tokens,
            held_out=len(asked) // 8 if held_out is None else held_out,
            drafts=drafts,
        )
    except (EngineError, TemplateFailed, OSError, UnicodeDecodeError) as err:
        raise CommandError(f"fit-medusa: {err}") from err


def _questions(file: Path | None) -> Sequence[str]:
    """Return the lines of the file, or the questions of the demo; raises CommandError for an unusable file."""
    if file is None:
        return all_questions()[:DEMO_QUESTIONS]
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not 0 < len(lines) <= PROMPTS_MAX:
        raise CommandError(
            f"--prompts: {file} must have 1 to {PROMPTS_MAX:,} questions, not {len(lines):,}", 2
        )
    return lines
