"""Settings: sources, references, refusals with their path, and secrets that do not show."""

import json
from pathlib import Path

import pytest

from gateway.settings.sources import load_settings
from gateway.settings.types import Secret, SettingsProblem
from workers.adapters.connection_pool import ConnectionPool

SMALLEST = "workers: [{id: a, kind: openai, url: 'http://localhost:1'}]\n"
TENANT = """
workers: [{id: a, kind: openai, url: "http://localhost:1", api_key: "${env:KEY}"}]
plans: [{name: free, limits: [{requests: 60, per: minute}]}]
tenants:
  - id: acme
    plan: free
    keys: [{id: k1, hash: "hmac-sha256:%s", expires: 2027-01-31}]
""" % ("0" * 64)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "gateway.yaml"
        path.write_text(text)
        return path

    return write


def refusal(path, environment=None, *assignments):
    with pytest.raises(SettingsProblem) as refused:
        load_settings(path, environment or {}, assignments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_smallest_useful_file_names_one_worker(file):
    settings = load_settings(file(SMALLEST), {}).settings
    assert (settings.listen.port, settings.routing.policy) == (8000, "cost")


def test_later_sources_win(file):
    path = file(SMALLEST + "listen: {port: 1}\nadmin: {port: 1}\nrouting: {policy: least_work}\n")
    environment = {"RADIXGATE__LISTEN__PORT": "2", "RADIXGATE__ADMIN__PORT": "2"}
    settings = load_settings(path, environment, ["listen.port=3"]).settings
    assert (settings.listen.port, settings.admin.port, settings.routing.policy) == (3, 2, "least_work")


def test_text_stays_text_unless_its_field_is_something_else(file):
    path = file(SMALLEST)
    settings = load_settings(
        path, {"RADIXGATE__DEPLOYMENT_SECRET": "12345", "RADIXGATE__DRAIN__SECONDS": "7"}
    ).settings
    assert settings.deployment_secret == Secret("12345")
    assert settings.drain.seconds == 7.0


def test_lists_and_mappings_can_be_given_in_one_piece():
    settings = load_settings(None, {}, ["workers=[{id: a, kind: vllm, url: 'http://x:1'}]"]).settings
    assert settings.workers[0].kind == "vllm"


@pytest.mark.parametrize("name", ["workers.0.url", "workers[0].url"])
def test_elements_of_lists_can_be_reached(file, name):
    settings = load_settings(file(SMALLEST), {}, [f"{name}=http://other:2"]).settings
    assert settings.workers[0].url == "http://other:2"


def test_references_are_replaced(file, tmp_path):
    (tmp_path / "secret.txt").write_text("from a file\n")
    path = file(TENANT + "deployment_secret: '${file:secret.txt}'\n")
    settings = load_settings(path, {"KEY": "from the environment"}).settings
    assert settings.workers[0].api_key == Secret("from the environment")
    assert settings.deployment_secret == Secret("from a file")


def test_a_missing_reference_is_refused_with_its_path(file):
    assert refusal(file(TENANT)) == "$.workers[0].api_key: the environment variable KEY is not set"
    path = file(SMALLEST + "deployment_secret: '${file:nothing}'\n")
    assert refusal(path).startswith("$.deployment_secret: the file nothing cannot be read")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workers: [{id: a, kind: foo, url: 'http://x'}]", "$.workers[0].kind: there is no kind 'foo'"),
        ("workers: [{id: a, kind: vllm, url: 'x'}]", "$.workers[0].url: expected an http:// or"),
        ("workers: [{id: 'a b', kind: vllm, url: 'http://x'}]", "$.workers[0].id: expected 1 to 64 letters"),
        ("workers: [{id: a, kind: vllm}]", "$.workers[0].url: is missing"),
        (SMALLEST + "listen: {prot: 1}", "$.listen.prot: unknown setting (did you mean port?)"),
        (SMALLEST + "lisen: {port: 1}", "$.lisen: unknown setting (did you mean listen?)"),
        (SMALLEST + "listen: {port: many}", "$.listen.port: expected a port, 0 to 65535"),
        (SMALLEST + "listen: {port: 70000}", "$.listen.port: expected a port, 0 to 65535"),
        (SMALLEST + "database: {url: x}", "$.database.url: expected `none`, or an address sqlite:///FILE"),
        (
            SMALLEST + "queueing: {within: lifo}",
            "$.queueing.within: there is no policy 'lifo'; there are edf",
        ),
        (SMALLEST + "queueing: {options: {quantum: 1}}", "$.queueing.options.quantum: unknown setting"),
        (
            SMALLEST + "queueing: {across: priority, options: {reserved: {vip: 0.5}}}",
            "$.queueing.options: reserved for a class that has no place in the order: vip",
        ),
        (SMALLEST + "routing: {policy: near}", "$.routing.policy: there is no policy 'near'; there are"),
        (SMALLEST + "queueing: {across: lot}", "$.queueing.across: there is no policy 'lot'; there are dlpm"),
        (
            SMALLEST + "telemetry: {log_level: loud}",
            "$.telemetry.log_level: there is no 'loud'; choose one of",
        ),
        (SMALLEST + "tenants: [{id: a, plan: gold}]", "$.tenants[0].plan: there is no plan 'gold'"),
        (SMALLEST + "tenants: [{id: a}, {id: a}]", "$.tenants: 'a' is named twice"),
        (
            SMALLEST + "plans: [{name: p, limits: [{per: hour}]}]",
            "$.plans[0].limits[0]: a limit names one of",
        ),
        (
            SMALLEST + "plans: [{name: p, limits: [{spend: 2, requests: 1}]}]",
            "$.plans[0].limits[0]: a limit names one of requests, input_tokens,",
        ),
        (SMALLEST + "listen: {host: 0.0.0.0}", "$.tenants: at least one tenant is needed unless listen.host"),
        (SMALLEST + "listen: {host: 0.0.0.0}", "`radixgate tenants set NAME`"),
        (
            SMALLEST + "models: [{name: m, tokenizer: /nowhere}]",
            "$.models[0].tokenizer: there is no tokenizer.json",
        ),
        (
            SMALLEST + "models: [{name: m, tokenizer: meta-llama/Llama-3.1-8B}]",
            "the gateway downloads nothing: name a directory with tokenizer.json, or write `worker`",
        ),
        (
            SMALLEST + "tenants: [{id: a, isolation: {mode: group}}]",
            "$.tenants[0].isolation: isolation.group goes with",
        ),
        ("listen: {port: 1}", "$.workers: at least one worker is needed"),
        ("- a\n- b\n", "gateway.yaml: $: expected a mapping of settings, got list"),
        ("a: [", "gateway.yaml: not valid YAML"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_its_path(file, text, expected):
    said = refusal(file(text))
    assert said.partition("gateway.yaml")[2] == "" or "gateway.yaml" in expected
    assert expected.removeprefix("gateway.yaml") in said


@pytest.mark.parametrize(
    "url",
    [
        "http://x:99999",
        "http://x:0",
        "http://x:abc",
        "http://x:-1",
        "http://x:1:2",
        "http://a..b:1",
        "http://.a:1",
        f"http://{'a' * 64}:1",
        f"http://{'.'.join(['a' * 60] * 5)}:1",
        "http://:80",
        "http://user@:80",
        "http://[::1",
        "http://[::x]:1",
        "http://[v1.a]:1",
        "http://::1",
        "http://x/pf\u00e4d",
        "http://m\u00fcller:1",
        "http://x\x01y:1",
        "http://x/\x7f",
        "http://a,b:1",
    ],
)
def test_an_address_that_cannot_be_one_is_refused_with_its_path(url):
    workers = json.dumps([{"id": "a", "kind": "openai", "url": url}])
    assert refusal(None, None, f"workers={workers}").startswith("$.workers[0].url: ")


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:1",
        "https://engine.example.com",
        "http://engine.example.com.:8000/v1/",
        "http://[::1]:30000/pre/fix",
        "http://[fe80::1%eth0]:1",
        "http://my_service-1:8000",
        f"http://{'a' * 63}.{'b' * 63}",
    ],
)
def test_every_address_that_can_be_one_is_taken(url):
    workers = json.dumps([{"id": "a", "kind": "openai", "url": url}])
    settings = load_settings(None, {}, [f"workers={workers}"]).settings
    assert settings.workers[0].url == url
    ConnectionPool(url)


def test_the_address_of_the_collector_is_looked_at_too(file):
    said = refusal(file(SMALLEST + "telemetry: {otlp_endpoint: 'http://x:99999'}"))
    assert said == "$.telemetry.otlp_endpoint: the port must be a number from 1 to 65535"


def test_a_missing_file_is_one_line(tmp_path):
    assert refusal(tmp_path / "none.yaml").endswith("none.yaml: there is no such file")


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("listen.port", "--set listen.port: expected PATH=VALUE, as in listen.port=9000"),
        ("workers.7.url=http://x", "$.workers[7]: there is no such list element (--set workers.7.url)"),
        ("tenants.0.id=x", "$.tenants[0]: there is no such list element (--set tenants.0.id)"),
        ("deployment_secret=", "$.deployment_secret: expected printable ASCII characters, at least one"),
        ("workers.0.api_key=a\nb", "$.workers[0].api_key: expected printable ASCII characters, at least one"),
    ],
)
def test_a_wrong_assignment_is_one_line(file, assignment, expected):
    assert refusal(file(SMALLEST), {}, assignment) == expected


def test_every_leaf_is_explained_with_its_source_and_secrets_are_masked(file):
    path = file(TENANT + "redis: {url: 'redis://user:hidden@host:1'}\ndeployment_secret: hidden-too\n")
    environment = {"KEY": "hidden-three", "RADIXGATE__LISTEN__PORT": "9"}
    leaves = list(load_settings(path, environment, ["index.predicted_seconds=3"]).leaves())
    found = {name: (value, source) for name, value, source in leaves}
    assert found["$.listen.port"] == ("9", "environment RADIXGATE__LISTEN__PORT")
    assert found["$.index.predicted_seconds"] == ("3.0", "--set index.predicted_seconds")
    assert found["$.tenants[0].id"] == ('"acme"', str(path))
    assert found["$.drain.seconds"] == ("120.0", "default")
    assert found["$.redis.url"] == ('"redis://****@host:1"', str(path))
    assert found["$.workers[0].api_key"] == ("****", str(path))
    assert "hidden" not in str(leaves)


def test_a_command_that_needs_one_value_does_not_require_the_rest():
    assert load_settings(None, {}, ["state_directory=/x"], complete=False).settings.state_directory == "/x"


def test_secrets_do_not_show_themselves():
    assert "hidden" not in repr(Secret("hidden")) + str(Secret("hidden")) + f"{Secret('hidden')}"


def test_no_other_module_reads_the_environment():
    allowed = {"sources.py", "children.py"}
    for source in Path("gateway").rglob("*.py"):
        if source.name not in allowed:
            # With a slash it is how another gateway's settings refer to it.
            assert "os.environ" not in source.read_text().replace("os.environ/", ""), source
