"""The load client's parts: prompts from block ids, callers by lot, figures, CSV and page."""

import csv
import io
from array import array

import pytest

from gateway.bench.report import as_csv, as_page
from gateway.bench.results import Objectives, Result, by_tenant
from gateway.bench.trace_prompts import Prompts
from gateway.bench.trace_tenants import Caller, CallersInvalid, caller_of, players, read_callers
from policies.simulation.trace import TraceRequest
from policies.simulation.workloads import Load, generated
from workers.engine import tiny_checkpoint


def request(*blocks, prompt_tokens=None, **more):
    tokens = 512 * len(blocks) if prompt_tokens is None else prompt_tokens
    return TraceRequest(at=0.0, prompt_tokens=tokens, output_tokens=1, blocks=array("Q", blocks), **more)


def result(tenant="acme", ttft=0.1, **more):
    return Result(
        tenant=tenant,
        sent_at=0.0,
        first_at=ttft,
        last_at=ttft + 0.9,
        gaps=(0.1,) * 9,
        prompt_tokens=100,
        cached_tokens=60,
        output_tokens=10,
        **more,
    )


def test_equal_blocks_are_equal_text_and_other_blocks_other_text_from_there_on():
    prompts = Prompts()
    one, two = (prompts.text(request(*blocks)).split() for blocks in ((1, 2, 3), (1, 2, 4)))
    assert one[:1024] == two[:1024]
    assert one[1024:] != two[1024:]
    assert one[1024:1034] != two[1024:1034]


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 1024])
def test_a_prompt_has_as_many_words_as_it_should_have_tokens(tokens):
    blocks = range(-(-tokens // 512))
    assert len(Prompts().text(request(*blocks, prompt_tokens=tokens)).split()) == tokens


def test_another_seed_gives_another_text():
    assert Prompts(seed=1).text(request(1)) != Prompts(seed=2).text(request(1))


def test_with_a_tokenizer_lengths_are_true(tmp_path):
    prompts = Prompts(tiny_checkpoint.build(tmp_path / "tiny", hidden=16, layers=1, heads=2))
    asked = [request(1, 2, prompt_tokens=900), request(7, prompt_tokens=40)]
    assert prompts.tokens_per_word(asked) == pytest.approx(1.0, abs=0.02)


def test_a_caller_whom_the_trace_names_sends_its_own_requests():
    callers = [Caller(name="acme"), Caller(name="globex")]
    asked = [request(1, tenant="globex"), request(2, tenant="initech")]
    played = players(asked, callers)
    assert [caller_of(one, callers, played).name for one in asked] == ["globex", "acme"]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_caller_sends_something_where_the_trace_has_tenants_enough(count):
    callers = [Caller(name=f"caller {number}") for number in range(count)]
    asked = generated("mixed", Load(requests=200, tenants=count, skew=0.0))
    played = players(asked, callers)
    assert {caller_of(one, callers, played).name for one in asked} == {caller.name for caller in callers}


def test_the_turns_of_a_conversation_are_one_callers_and_all_callers_get_some():
    callers = [Caller(name=f"t{number}") for number in range(4)]
    for session in range(20):
        turns = [request(0, session, *range(100, 100 + turn)) for turn in range(5)]
        assert len({caller_of(turn, callers, {}).name for turn in turns}) == 1
    assert {caller_of(request(0, session), callers, {}).name for session in range(60)} == {
        "t0",
        "t1",
        "t2",
        "t3",
    }


def test_goodput_goes_by_each_tenants_own_objectives():
    strict, usual = Objectives(ttft_seconds=0.05), Objectives()
    run = by_tenant(
        [result("acme"), result("globex")], 2.0, lambda tenant: strict if tenant == "acme" else usual
    )
    assert run["tenants"]["acme"]["goodput"] == 0
    assert run["tenants"]["globex"]["goodput"] == 0  # its tokens come 100 ms apart
    run = by_tenant([result("acme")], 2.0, lambda tenant: Objectives(tpot_seconds=0.2))
    assert run["all"]["goodput"] == 1
    assert run["all"]["goodput_requests_per_second"] == 0.5


def test_errors_are_counted_by_code_and_are_no_answers():
    run = by_tenant([result(), result(error="rate_limit_exceeded"), result(error="TimeoutError")], 1.0)["all"]
    assert run["errors"] == 2
    assert run["errors_by_code"] == {"rate_limit_exceeded": 1, "TimeoutError": 1}
    assert run["prompt_tokens"] == 100


def test_the_csv_has_a_line_for_each_request_and_no_formulas():
    rows = list(csv.reader(io.StringIO(as_csv([result("=1+1"), result(error="x")]))))
    assert len(rows) == 3
    assert rows[1][0] == "'=1+1"
    assert rows[1][2] == "100.000"
    assert rows[2][-1] == "x"


def test_the_page_holds_its_plots_and_escapes_names():
    results = [result("<b>acme</b>"), result("globex")]
    page = as_page("model <m>", by_tenant(results, 1.0), {"url": "http://x/<y>"}, results)
    assert "<svg" in page
    assert "&lt;b&gt;acme&lt;/b&gt;" in page
    assert "<b>acme" not in page
    assert "<y>" not in page


def test_a_file_of_callers_that_is_wrong_is_refused_without_its_keys(tmp_path):
    file = tmp_path / "tenants.yaml"
    file.write_text("- {name: acme, key: sk-secret, ttft_ms: soon}", encoding="utf-8")
    with pytest.raises(CallersInvalid, match="ttft_ms") as refusal:
        read_callers(file)
    assert "sk-secret" not in str(refusal.value)
    file.write_text("- {name: a}\n- {name: a}", encoding="utf-8")
    with pytest.raises(CallersInvalid, match="two callers of one name"):
        read_callers(file)
