"""The shipped model of the demo: it loads, equals transformers, and answers in whole words."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from gateway.demo.demo_processes import TENANTS, TINY_MODEL
from gateway.demo.topics import all_questions
from gateway.demo.traffic import TrafficScale, make_sessions
from tests.demo_model.asking import answers, as_prompt
from tests.demo_model.corpus import SMALL_TALK, all_answers
from workers.chat_template import ChatTemplate
from workers.engine.tokenization.tokenizer import Tokenizer

BYTES_MAX = 10_000_000
RIGHT_MIN = 0.95
STRANGE = ["What is the capital of Peru?", "hello!!", "write me a haiku", "2 + 2", "Was ist ein Block?"]


def words_in(text: str) -> set[str]:
    return set(re.findall(r"[^\s.,:!?]+", text))


@pytest.fixture(scope="module")
def given() -> dict[str, str]:
    """The answers to questions of all kinds; those of the demo come after sentences that mean nothing."""
    torch.set_num_threads(1)
    chats = make_sessions(TENANTS, TrafficScale(sessions=2, turns=6))
    in_the_demo = [question for chat in chats for question in chat.questions]
    small_talk = [forms[0] for forms in SMALL_TALK]
    return answers(TINY_MODEL, [*all_questions()[:40], *in_the_demo, *small_talk, *STRANGE])


def test_the_files_are_few_and_small() -> None:
    assert sum(file.stat().st_size for file in TINY_MODEL.iterdir()) < BYTES_MAX
    assert {file.suffix for file in TINY_MODEL.iterdir()} == {".json", ".safetensors"}


def test_greedy_answers_are_those_of_transformers(given: dict[str, str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    tokenizer = Tokenizer(TINY_MODEL)
    for question in [*list(given)[:4], *list(given)[40:44], *STRANGE[:2]]:
        prompt = torch.tensor([tokenizer.encode(as_prompt(question), add_special_tokens=False)])
        said = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False
        )[0, prompt.shape[1] :]
        assert tokenizer.decode(said.tolist()) == given[question]


def test_every_answer_is_a_sentence_of_words_that_it_was_trained_on(given: dict[str, str]) -> None:
    known = words_in(" ".join(all_answers()))
    for question, answer in given.items():
        assert words_in(answer) <= known, question
        assert re.fullmatch(r"[A-Z].*\.", answer), question


def test_most_questions_of_the_demo_get_the_answer_of_their_topic(given: dict[str, str]) -> None:
    asked = list(given)[:64]
    right = [question for question in asked if given[question] in all_answers()]
    assert len(right) >= RIGHT_MIN * len(asked)


def test_the_prompts_are_those_of_its_chat_template() -> None:
    template = ChatTemplate.from_directory(Path(TINY_MODEL))
    assert template.render([{"role": "user", "content": "What is a block?"}]) == as_prompt("What is a block?")
