"""The service class of a request: asked for, allowed by the plan, or the default."""

import json

import msgspec
import pytest

from gateway.domain.errors import BadRequest, ClassNotAllowed
from gateway.domain.request import Surface
from gateway.domain.tenant import Plan, Tenant
from gateway.models.service_classes import ServiceClasses
from gateway.settings.service_classes import ServiceClassesSettings
from gateway.web.openai.inference_requests import decode_openai_request
from gateway.web.queue_headers import parse_queue_headers

CLASSES = ServiceClasses(
    msgspec.convert({"voice": {"models": ["tts-*"], "ttft_ms": 100}}, ServiceClassesSettings)
)


def request(**more):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    return decode_openai_request(Surface.CHAT, json.dumps(body).encode())


def named(*, header=None, key=None, plan=(), model="m", **more):
    tenant = Tenant(
        id="t", organisation="t", key_id="k", plan=Plan(classes=plan), group="t", service_class=key
    )
    return CLASSES.find(header, request(**more), tenant, model).name


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({}, "chat"),
        ({"plan": ("batch", "chat")}, "batch"),
        ({"model": "tts-1"}, "voice"),
        ({"model": "tts-1", "key": "code"}, "code"),
        ({"model": "tts-1", "key": "code", "service_tier": "flex"}, "batch"),
        ({"key": "code", "service_tier": "batch", "header": "voice"}, "voice"),
        ({"service_tier": "priority"}, "code"),
        ({"service_tier": "auto"}, "chat"),
        ({"service_tier": 7}, "chat"),
        ({"service_tier": "priority", "plan": ("chat",)}, "chat"),
        ({"key": "voice", "plan": ("chat",)}, "chat"),
        ({"model": "tts-1", "plan": ("chat", "batch")}, "chat"),
    ],
    ids=str,
)
def test_header_then_tier_then_key_then_model_then_plan_decide_the_class(asked, name):
    assert named(**asked) == name


def test_a_class_that_the_plan_does_not_have_is_refused_by_name():
    with pytest.raises(ClassNotAllowed) as refused:
        named(header="voice", plan=("chat", "batch"))
    assert (refused.value.status, refused.value.code) == (403, "class_not_allowed")


def test_a_class_that_there_is_not_is_a_bad_request():
    with pytest.raises(BadRequest, match="voice, code, chat, batch"):
        named(header="urgent")


@pytest.mark.parametrize(("tier", "sent"), [("batch", False), ("flex", True), ("auto", True)])
def test_a_worker_never_gets_our_own_names(tier, sent):
    assert ("service_tier" in CLASSES.without_own_tiers(request(service_tier=tier)).fields) is sent


def test_settings_change_a_class_and_leave_its_other_defaults():
    voice = CLASSES["voice"]
    assert (voice.ttft_seconds, voice.late, voice.level) == (0.1, "reject", 0)
    assert [kind.ttft_seconds for kind in ServiceClasses()] == [0.15, 0.2, 0.5, 2.0]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-stainless-read-timeout": "600"}, 600.0),
        ({"x-stainless-read-timeout": "600", "x-stainless-timeout": "30.5"}, 30.5),
        ({"x-request-timeout": "2"}, 2.0),
        ({"x-request-timeout": "soon"}, None),
        ({"x-request-timeout": "nan"}, None),
        ({"x-request-timeout": "inf"}, None),
        ({"x-request-timeout": "0"}, None),
        ({"x-request-timeout": "-1"}, None),
        ({"x-request-timeout": "9" * 50}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_least_timeout_that_is_one_is_how_long_a_client_waits(headers, seconds):
    assert parse_queue_headers(headers).timeout_seconds == seconds


@pytest.mark.parametrize("text", ["0", "61", "often", ""])
def test_signs_of_life_come_in_seconds(text):
    with pytest.raises(BadRequest, match="x-radixgate-keep-alive"):
        parse_queue_headers({"x-radixgate-keep-alive": text})
