"""The training text of the demo's model: chats about the topics of the demo, small talk, and what is beyond it.

    system       You are assistant 1 of acme. The old harbour will follow every letter.       in half of the chats
    user         This lantern builds our quiet market. What is a block?                       sentences to ignore,
    assistant    A block is a fixed number of tokens, and only full blocks are ...            then a question

All sentences are written for this project, in `gateway/demo/topics.yaml`, `workers/engine/tiny_text.py` and here.
"""

import random
import string
from collections.abc import Iterator

from gateway.demo.topics import draw_question, topics
from workers.engine.tiny_text import sentences

SMALL_TALK = {
    (
        "Hello",
        "Hello!",
        "Hi",
        "Hi there",
        "Hey",
        "Good morning",
        "Good evening",
        "Hello world",
        "Say hello.",
    ): ("Hello! I am a tiny model, trained for this demo. Ask me what prefix caching is."),
    (
        "Who are you?",
        "What are you?",
        "Tell me about yourself.",
        "Which model are you?",
        "What is your name?",
    ): ("I am a tiny language model with fewer than three million weights, trained for this demo."),
    (
        "What can you do?",
        "Help",
        "Help me.",
        "What do you know?",
        "What can I ask you?",
        "How can you help me?",
    ): ("I can answer short questions about prefix caching, routing, tenants and the parts of an engine."),
    ("Thanks", "Thank you", "Thank you very much.", "Great, thanks!", "That was helpful."): (
        "You are welcome. Ask me about another topic."
    ),
    ("Goodbye", "Bye", "See you later.", "Good night"): "Goodbye, and thank you for trying this demo.",
    ("How are you?", "How do you do?", "Are you well?", "How is it going?"): (
        "I am well, thank you. Ask me how routing works."
    ),
}
BEYOND = "I do not know that, because I am a tiny model. Ask me about prefix caching, routing or tenants."
"""The answer to all other messages."""
STRANGE = (
    "What is the capital of {0}?",
    "Write a {0} about the {1}.",
    "How do I {0} a {1}?",
    "Who was {0}?",
    "What is {0}?",
    "Why is the {0} {1}?",
    "Translate {0} to {1}.",
    "Tell me a joke about {0}.",
    "Write a function that sorts a list of {0}.",
    "How many {0} are in {1}?",
    "{0} {1}",
    "Count from 1 to 10.",
    "What time is it?",
    "Say yes.",
    "Write a poem.",
    "Tell me a story.",
)
"""Messages beyond the topics; words that the model has never seen take the places of the marks."""


def all_answers() -> list[str]:
    """Return every answer that the model is trained to give."""
    return [
        *(answer for parts in topics().values() for answer in parts.values()),
        *SMALL_TALK.values(),
        BEYOND,
    ]


def tokenizer_texts() -> Iterator[str]:
    """Yield the text that the tokenizer is trained on."""
    yield from sentences(0, 3000)
    chance = random.Random(0)
    for _ in range(3000):
        yield " ".join(_exchange(chance))
    for answer in all_answers():
        yield from [answer] * 8


def chat(chance: random.Random, *, sentences_max: int) -> str:
    """Return one chat as the chat template of the model writes it.

    Args:
        chance: the source of random choices.
        sentences_max: the most sentences of the system prompt; a message of a user has a third as many.
    """
    said = []
    if chance.random() < 0.5:
        text = _sentences(chance, chance.randint(0, sentences_max))
        said.append(
            ("system", f"You are assistant {chance.randint(0, 9)} of {_name(chance)}. {text}".strip())
        )
    for _ in range(chance.randint(1, 4)):
        question, answer = _exchange(chance)
        before = chance.choice((0, 0, chance.randint(0, sentences_max // 3)))
        said += [("user", f"{_sentences(chance, before)} {question}".strip()), ("assistant", answer)]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)


def _exchange(chance: random.Random) -> tuple[str, str]:
    kind = chance.random()
    if kind < 0.8:
        question, answer = draw_question(chance)
    elif kind < 0.9:
        forms, answer = chance.choice(list(SMALL_TALK.items()))
        question = chance.choice(forms)
    else:
        question, answer = _beyond(chance), BEYOND
    return _carelessly(chance, question), answer


def _beyond(chance: random.Random) -> str:
    if chance.random() < 0.2:
        return _sentences(chance, 1)
    return chance.choice(STRANGE).format(_strange(chance), _strange(chance))


def _carelessly(chance: random.Random, text: str) -> str:
    """Return the text as a person may type it: in small letters, or without the last mark."""
    kind = chance.random()
    if kind < 0.1:
        return text.lower()
    return text.rstrip("?.!") if kind < 0.2 else text


def _sentences(chance: random.Random, count: int) -> str:
    return " ".join(sentences(chance.randrange(1 << 30), count))


def _name(chance: random.Random) -> str:
    return chance.choice(("acme", "globex", "initech", _strange(chance)))


def _strange(chance: random.Random) -> str:
    word = "".join(
        chance.choice("bcdfglmnprst") + chance.choice("aeiou") for _ in range(chance.randint(1, 4))
    )
    word += chance.choice(("", "n", "s", "r", chance.choice(string.ascii_lowercase)))
    return word.capitalize() if chance.random() < 0.5 else word
