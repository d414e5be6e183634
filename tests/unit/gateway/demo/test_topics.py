"""The topics of the demo: every part has an answer, every question belongs to one, and equal seeds ask the same."""

import random

from gateway.demo.topics import QUESTIONS, all_questions, draw_question, topics
from gateway.demo.traffic import TrafficScale, make_sessions


def test_every_topic_has_an_answer_of_one_sentence_to_each_kind_of_question():
    for subject, parts in topics().items():
        assert set(parts) == set(QUESTIONS), subject
        assert all(answer[0].isupper() and answer.endswith(".") for answer in parts.values()), subject


def test_no_two_parts_have_the_same_answer():
    found = [answer for parts in topics().values() for answer in parts.values()]
    assert len(set(found)) == len(found)


def test_a_drawn_question_is_one_of_all_and_has_the_answer_of_its_topic():
    chance = random.Random(3)
    every = set(all_questions())
    for _ in range(50):
        question, answer = draw_question(chance)
        assert question in every
        assert any(answer in parts.values() and subject in question for subject, parts in topics().items())


def test_each_message_of_the_demo_ends_with_a_question_about_a_topic():
    scale = TrafficScale(sessions=2, turns=3)
    chats = make_sessions(("acme", "globex"), scale)
    assert chats == make_sessions(("acme", "globex"), scale)
    every = tuple(all_questions())
    for chat in chats:
        assert len(chat.questions) == scale.turns
        assert all(message.endswith(every) for message in chat.questions)
