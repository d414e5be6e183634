"""The topics that the demo's chats are about: the questions that tenants ask, and the answers of the tiny model.

The answers are the training text of the model in `tiny-llama` beside this file (`make demo-model`); at run time
only the questions are used.
"""

import random
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "what": (
        "What is {}?",
        "What does {} mean?",
        "Explain {}.",
        "Can you explain {}?",
        "Tell me about {}.",
        "Please describe {}.",
    ),
    "why": (
        "Why does {} matter?",
        "Why do we need {}?",
        "What is {} good for?",
        "What is the use of {}?",
        "When does {} help?",
    ),
    "how": (
        "How does {} work?",
        "Can you tell me how {} works?",
        "Show me how {} works.",
        "How does {} work in practice?",
    ),
}
"""The forms of a question, by the part of a topic that answers it."""


@cache
def topics() -> Mapping[str, Mapping[str, str]]:
    """Return the answers of each topic: what it is, why it matters, how it works."""
    read: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("topics.yaml").read_bytes())
    return read


def all_questions() -> list[str]:
    """Return every question that the model was trained to answer, in an order that mixes the topics."""
    questions = [
        form.format(subject)
        for subject, parts in topics().items()
        for part in parts
        for form in QUESTIONS[part]
    ]
    random.Random(0).shuffle(questions)
    return questions


def draw_question(chance: random.Random) -> tuple[str, str]:
    """Return a question about one of the topics, and its answer."""
    subject, parts = chance.choice(list(topics().items()))
    part = chance.choice(list(parts))
    return chance.choice(QUESTIONS[part]).format(subject), parts[part]
