"""Error messages about settings: one line with the path of the mistake and the accepted values."""

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gateway.settings.sources import load_settings
from gateway.settings.types import (
    DatabaseUrl,
    FilePath,
    HttpUrl,
    Identifier,
    KeyHash,
    Name,
    RedisUrl,
    Secret,
    SettingsProblem,
    ZmqUrl,
)

WORKER = "{id: a, kind: openai, url: 'http://localhost:1'}"
SMALLEST = f"workers: [{WORKER}]\n"
HASH = "hmac-sha256:" + "0" * 64


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


def keyed(entry):
    return SMALLEST + f"tenants: [{{id: acme, keys: [{entry}]}}]\n"


WRONG_REFERENCES = [
    "${ENV:TOK}",
    "${foo:x}",
    "${env:NOPE",
    "a ${} b",
    "${env:}",
    "${env:A B}",
    "${env:${env:KEY}}",
]


@pytest.mark.parametrize("text", WRONG_REFERENCES)
def test_what_looks_like_a_reference_and_is_none_is_refused_in_every_source(file, text):
    expected = (
        "$.deployment_secret: `${` begins a reference, ${env:NAME} or ${file:PATH}; write $${ for the text"
    )
    assert refusal(file(SMALLEST + f"deployment_secret: '{text}'\n"), {"KEY": "x"}) == expected
    path = file(SMALLEST)
    assert refusal(path, {"RADIXGATE__DEPLOYMENT_SECRET": text, "KEY": "x"}) == expected
    assert refusal(path, {"KEY": "x"}, f"deployment_secret={text}") == expected


def test_two_dollars_stand_for_one_that_begins_no_reference(file):
    path = file(SMALLEST + "deployment_secret: 'a$${env:KEY}b$c'\n")
    assert load_settings(path, {}).settings.deployment_secret == Secret("a${env:KEY}b$c")


def test_what_a_reference_brings_is_not_read_again(file):
    path = file(SMALLEST + "deployment_secret: '${env:KEY}'\n")
    assert load_settings(path, {"KEY": "a${b}"}).settings.deployment_secret == Secret("a${b}")


@pytest.mark.parametrize(
    "url",
    [
        *("embedded", "redis://h", "redis://:password@h:6379/0", "rediss://user:p%40ss@h:6380/3"),
        *("redis://[::1]:6379", "unix:///run/valkey.sock", "unix:///run/valkey.sock?db=2"),
        *(
            "rediss://h?ssl_cert_reqs=none",
            "redis+cluster://h",
            "redis+sentinel://:pass@h:26379,i/main/2",
            "redis+cluster://:pass@h:7000,i:7001",
        ),
        "rediss+cluster://user:p%40ss@[::1]:7000,h?ssl_ca_certs=/ca.pem",
    ],
)
def test_addresses_of_redis_that_are_right(file, url):
    assert load_settings(file(SMALLEST + f"redis: {{url: '{url}'}}\n"), {}).settings.redis.url == url


REDIS_ADDRESS = (
    "expected `embedded`, or an address redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:99999", "the port is not one of 1 to 65535"),
        ("redis://h:0", "the port is not one of 1 to 65535"),
        ("redis://h:port", "the port is not one of 1 to 65535"),
        ("redis://:a/b@h:1", "the port is not one of 1 to 65535"),
        ("redis://", "there is no host"),
        ("redis://:6379", "there is no host"),
        ("rediss:///1", "there is no host"),
        ("redis://h/one", "the database is not a number"),
        ("redis://h?db=one", "the query"),
        ("redis://h?nope=1", "the query"),
        ("redis://h?socket_timeout=soon", "the query"),
        ("unix://", "there is no path"),
        ("unix://host", "there is no path"),
        ("redis+cluster://", "there is no host; write redis+cluster://"),
        ("redis+cluster://a:1,:2", "there is no host; write redis+cluster://"),
        ("redis+cluster://a:1,b:port", "the port is not one of 1 to 65535"),
        ("redis+cluster://a:1,b:2?nope=1", "the query"),
        ("redis+sentinel://a:1", "write redis+sentinel://host:26379,host:26379/service"),
        ("redis://[::1", "it is not a valid URL"),
        ("http://h", REDIS_ADDRESS),
        ("redis:h", REDIS_ADDRESS),
        ("", REDIS_ADDRESS),
    ],
)
def test_addresses_of_redis_that_are_wrong(file, url, expected):
    said = refusal(file(SMALLEST + f"redis: {{url: '{url}'}}\n"))
    assert said.startswith(f"$.redis.url: {expected}")


def test_a_wrong_address_of_redis_does_not_show_its_password(file):
    assert "hidden" not in refusal(file(SMALLEST + "redis: {url: 'redis://user:hidden@h:99999'}\n"))
    assert "hidden" not in refusal(file(SMALLEST + "redis: {url: 'redis://user:hidden@h?nope=hidden'}\n"))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        "listen: " + "[" * 50 + "]" * 50,
        "listen: " + "[" * 20_000 + "]" * 20_000,
        "listen: " + "{a: " * 5_000 + "1" + "}" * 5_000,
    ],
)
def test_yaml_without_a_bottom_is_one_line(file, text):
    assert "is nested too deeply" in refusal(file(text))


def test_yaml_that_unfolds_without_end_is_one_line(file):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(9)
    )
    assert "has more than" in refusal(file(bomb))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            SMALLEST + "listen: {port: 1}\nlisten: {port: 2}\n",
            "$.listen: is given twice (gateway.yaml, line 3)",
        ),
        (
            SMALLEST + "listen:\n  port: 1\n  host: a\n  port: 2\n",
            "$.listen.port: is given twice (gateway.yaml, line 5)",
        ),
        (
            f"workers: [{WORKER[:-1]}, url: 'http://x'}}]",
            "$.workers[0].url: is given twice (gateway.yaml, line 1)",
        ),
        ("1: x\n", "$: the name 1 is not text; put it in quotes (gateway.yaml, line 1)"),
        ("[a]: x\n", "$: a name is not text (gateway.yaml, line 1)"),
        ("listen: !!binary aGk=\n", "$.listen: !!binary cannot be used in settings (gateway.yaml, line 1)"),
        ("listen: !!python/name:os.system x\n", "$.listen: "),
        ("listen: {port: " + "1" * 5000 + "}\n", "gateway.yaml: not valid YAML"),
        ('listen: "\x00"\n', "gateway.yaml: not valid YAML"),
        ("listen: {}\n---\nlisten: {}\n", "gateway.yaml: not valid YAML"),
    ],
)
def test_what_yaml_would_let_pass_is_refused(file, text, expected):
    path = file(text)
    assert refusal(path).replace(f"{path.parent}/", "").startswith(expected)


def test_a_name_that_comes_twice_is_refused_in_every_source(file):
    expected = "$.listen.port: is given twice (--set listen, line 1)"
    assert refusal(file(SMALLEST), {}, "listen={port: 1, port: 2}") == expected
    said = refusal(file(SMALLEST), {"RADIXGATE__LISTEN": "{port: 1, port: 2}"})
    assert said == "$.listen.port: is given twice (environment RADIXGATE__LISTEN, line 1)"


def test_a_merged_mapping_may_be_overridden(file):
    path = file("workers:\n  - &a {id: a, kind: openai, url: 'http://x'}\n  - {<<: *a, id: b}\n")
    assert [worker.id for worker in load_settings(path, {}).settings.workers] == ["a", "b"]


def test_text_that_begins_with_a_bracket_stays_text_where_text_is_wanted(file):
    assert load_settings(file(SMALLEST), {}, ["deployment_secret=[a"]).settings.deployment_secret == Secret(
        "[a"
    )
    assert refusal(file(SMALLEST), {}, "workers=[a").startswith("--set workers: not valid YAML")


def test_a_key_that_has_expired_is_a_warning(file):
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    path = file(keyed(f"{{id: k, hash: '{HASH}', expires: {yesterday}}}"))
    assert load_settings(path, {}).warnings == (
        f"$.tenants[0].keys[0].expires: {yesterday} has passed; the key is refused",
    )
    path = file(keyed(f"{{id: k, hash: '{HASH}', expires: {datetime.now(UTC).date()}}}"))
    assert load_settings(path, {}).warnings == ()


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        ("port: 7", "port: 7"),
        ("port: 7, host: localhost", "port: 7"),
        ("port: 7, host: 10.0.0.1", "port: 7, host: 10.0.0.1"),
        ("port: 7", "port: 7, host: 0.0.0.0"),
        ("port: 7, host: '::1'", "port: 7, host: '::'"),
    ],
)
def test_two_listeners_at_one_address_are_refused(file, listen, admin):
    path = file(keyed(f"{{id: k, hash: '{HASH}'}}") + f"listen: {{{listen}}}\nadmin: {{{admin}}}\n")
    assert refusal(path) == "$.admin.port: 7 is already the port of listen, at the same address"


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        ("port: 0", "port: 0"),
        ("port: 7", "port: 7, host: '::1'"),
        ("port: 7", "port: 7, host: 10.0.0.1"),
        ("port: 7, unix_socket: /tmp/s", "port: 7"),
    ],
)
def test_two_listeners_at_two_addresses_are_right(file, listen, admin):
    load_settings(file(SMALLEST + f"listen: {{{listen}}}\nadmin: {{{admin}}}\n"), {})


@pytest.mark.parametrize("name", ["$.listen.port", "listen.port"])
def test_a_path_as_messages_print_it_can_be_set(file, name):
    assert load_settings(file(SMALLEST), {}, [f"{name}=3"]).settings.listen.port == 3
    assert load_settings(file(SMALLEST), {}, ["$.workers[0].id=b"]).settings.workers[0].id == "b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "workers: [{id: a, kind: vllm, url: x}]",
            "$.workers[0].url: expected an http:// or https:// address",
        ),
        ("workers: [{id: 'a b', kind: vllm, url: 'http://x'}]", "$.workers[0].id: expected 1 to 64 letters,"),
        ("workers: [{id: a, kind: vllm}]", "$.workers[0].url: is missing"),
        (
            keyed("{id: k, hash: nonsense}"),
            "$.tenants[0].keys[0].hash: expected `hmac-sha256:` and 64 hex digits",
        ),
        (
            keyed(f"{{id: k, hash: '{HASH}', expires: tomorrow}}"),
            "$.tenants[0].keys[0].expires: expected a day or a time, such as 2027-01-31 or 2027-01-31T18:00:00Z",
        ),
        (
            keyed(f"{{id: k, hash: '{HASH}', expires: 2027-02-31}}"),
            "$.tenants[0].keys[0].expires: expected a day or a time, such as 2027-01-31 or 2027-01-31T18:00:00Z",
        ),
        (
            keyed(f"{{id: k, hash: '{HASH}', expires: 20270131}}"),
            "$.tenants[0].keys[0].expires: expected a day or a time, such as 2027-01-31 or 2027-01-31T18:00:00Z",
        ),
        (
            f"workers: [{WORKER[:-1]}, api_key: 12345678}}]",
            "$.workers[0].api_key: expected text, got a whole number; put it in quotes",
        ),
        (
            SMALLEST + "deployment_secret: true",
            "$.deployment_secret: expected text, got true or false; put it in",
        ),
        (SMALLEST + "deployment_secret: [a]", "$.deployment_secret: expected text, got a list"),
        (
            SMALLEST + "deployment_secret: ''",
            "$.deployment_secret: expected printable ASCII characters, at least",
        ),
        (
            SMALLEST + "tenants: [{id: 12}]",
            "$.tenants[0].id: expected text, got a whole number; put it in quotes",
        ),
        (SMALLEST + "listen: {port: many}", "$.listen.port: expected a port, 0 to 65535"),
        (SMALLEST + "listen: {port: 70000}", "$.listen.port: expected a port, 0 to 65535"),
        (SMALLEST + "listen: {host: ''}", "$.listen.host: expected text of at least 1 character"),
        (SMALLEST + "listen:", "$.listen: expected a mapping, got nothing"),
        (SMALLEST + "plans: {name: p}", "$.plans: expected a list, got a mapping"),
        (
            SMALLEST + "plans: [{name: p, concurrency: 0}]",
            "$.plans[0].concurrency: expected a whole number, at least 1",
        ),
        (
            SMALLEST + "plans: [{name: p, concurrency: x}]",
            "$.plans[0].concurrency: expected a whole number, got text",
        ),
        (SMALLEST + "drain: {seconds: -1}", "$.drain.seconds: expected a number, at least 0"),
        (
            SMALLEST + "requests: {idle_seconds_max: 0}",
            "$.requests.idle_seconds_max: expected a number above 0",
        ),
        (SMALLEST + "telemetry: {sample_ratio: 2}", "$.telemetry.sample_ratio: expected a number, at most 1"),
        (
            SMALLEST + "telemetry: {log_level: loud}",
            "$.telemetry.log_level: there is no 'loud'; choose one of debug, info, warning, error",
        ),
        (
            SMALLEST + "telemetry: {log_level: 3}",
            "$.telemetry.log_level: expected one of debug, info, warning, error",
        ),
        (
            SMALLEST + "telemetry: {otlp_endpoint: host:1}",
            "$.telemetry.otlp_endpoint: expected an http:// or",
        ),
        (SMALLEST + "routing: {options: {nope: 1}}", "$.routing.options.nope: unknown setting"),
        (
            SMALLEST + "routing: {options: {delay_weights: 1}}",
            "$.routing.options.delay_weights: unknown setting (did you mean delay_weight?)",
        ),
        (
            SMALLEST + "routing: {options: {delay_weight: x}}",
            "$.routing.options.delay_weight: expected a number, got text",
        ),
        (
            SMALLEST + "routing: {options: {backlog_ms: 0}}",
            "$.routing.options.backlog_ms: expected a number above 0",
        ),
        (
            SMALLEST + "listen: {unix_socket: '/%s'}" % ("a" * 200),
            "$.listen.unix_socket: the path of a socket has",
        ),
        (SMALLEST + 'state_directory: "a\\0b"', "$.state_directory: expected a path"),
        (SMALLEST + "state_directory: ''", "$.state_directory: expected a path"),
    ],
)
def test_messages_are_sentences_for_people(file, text, expected):
    said = refusal(file(text))
    assert said.startswith(expected)
    assert "regex" not in said


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "inf", "nan", "Infinity"])
@pytest.mark.parametrize(
    "path",
    [
        "drain.seconds",
        "queueing.waiting_seconds_max",
        "telemetry.sample_ratio",
        "routing.options.delay_weight",
    ],
)
def test_numbers_without_an_end_are_refused_everywhere(file, path, value):
    room, name = path.rsplit(".", 1)
    tree = f"{room}: {{{name}: {value}}}" if "." not in room else f"routing: {{options: {{{name}: {value}}}}}"
    assert refusal(file(SMALLEST + tree)).startswith(f"$.{path}: expected a")
    assert refusal(file(SMALLEST), {}, f"{path}={value}").startswith(f"$.{path}: expected a")


def test_options_of_a_policy_can_be_set_as_text(file):
    assert load_settings(
        file(SMALLEST), {}, ["routing.options.delay_weight=0.5"]
    ).settings.routing.options == {"delay_weight": "0.5"}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("RADIXGATE_LISTEN__PORT", "RADIXGATE__LISTEN__PORT"),
        ("RADIXGATE_LISTEN_PORT", "RADIXGATE__LISTEN__PORT"),
        ("RADIXGATE_STATE_DIRECTORY", "RADIXGATE__STATE_DIRECTORY"),
        ("RADIXGATE_REDIS_TIMEOUT_MS", "RADIXGATE__REDIS__TIMEOUT_MS"),
        ("RADIXGATE_SOMETHING", None),
    ],
)
def test_a_name_of_the_environment_that_is_nearly_right_is_a_warning(file, name, right):
    (said,) = load_settings(file(SMALLEST), {name: "1"}).warnings
    hint = f"write {right}" if right else "names of settings begin with RADIXGATE__"
    assert said == f"environment {name}: not a setting; {hint}"


def test_names_that_are_referred_to_or_come_from_kubernetes_are_no_warning(file):
    path = file(SMALLEST + "deployment_secret: '${env:RADIXGATE_DEPLOYMENT_SECRET}'\n")
    environment = {
        "RADIXGATE_DEPLOYMENT_SECRET": "x",
        "RADIXGATE_SERVICE_HOST": "10.0.0.1",
        "RADIXGATE_SERVICE_PORT_HTTP": "8000",
        "RADIXGATE_PORT": "tcp://10.0.0.1:8000",
        "RADIXGATE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "RADIXGATE_VALKEY_SERVICE_HOST": "10.0.0.2",
        "RADIXGATE_VALKEY_PORT_6379_TCP": "tcp://10.0.0.2:6379",
    }
    assert load_settings(path, environment).warnings == ()


def test_relative_paths_of_a_file_start_at_the_file(tmp_path, monkeypatch):
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "tokenizer.json").write_text("{}")
    path = tmp_path / "conf" / "gateway.yaml"
    monkeypatch.chdir(tmp_path)
    more = "models: [{name: m, tokenizer: model}, {name: n, tokenizer: text}]\nlisten: {unix_socket: s}\n"
    path.write_text(SMALLEST + "state_directory: ./state\n" + more)
    settings = load_settings(path.relative_to(tmp_path), {}).settings
    assert settings.state_directory == str(tmp_path / "conf" / "state")
    assert settings.listen.unix_socket == str(tmp_path / "conf" / "s")
    assert [m.tokenizer for m in settings.models] == [str(tmp_path / "conf" / "model"), "text"]
    found = (
        "discovery: [{kind: file, name: w.yaml}, {kind: dns, name: w.internal, port: 1, tls: {ca: ca.pem}}]\n"
    )
    path.write_text(SMALLEST + found + "listen: {tls: {certificate: c.pem, key: /k.pem}}\n")
    settings = load_settings(path, {"RADIXGATE__LISTEN__TLS__CLIENT_CA": "here.pem"}, complete=False).settings
    assert [one.name for one in settings.discovery] == [str(tmp_path / "conf" / "w.yaml"), "w.internal"]
    assert settings.discovery[1].tls.ca == str(tmp_path / "conf" / "ca.pem")
    tls = settings.listen.tls
    assert (tls.certificate, tls.key, tls.client_ca) == (
        str(tmp_path / "conf" / "c.pem"),
        "/k.pem",
        "here.pem",
    )
    path.write_text(SMALLEST)
    settings = load_settings(path, {"RADIXGATE__STATE_DIRECTORY": "here"}).settings
    assert settings.state_directory == "here"
    path.write_text(SMALLEST)
    assert load_settings(path, {}).settings.state_directory == str(tmp_path / "conf" / ".radixgate")
    assert load_settings(None, {}, complete=False).settings.state_directory == "./.radixgate"


def test_what_an_anchor_shares_is_set_in_one_place_alone(file):
    path = file(
        "workers:\n  - &a {id: a, kind: openai, url: 'http://x'}\n  - {<<: *a, id: b}\n"
        "plans: [{name: p, models: &m {allow: [x]}}, {name: q, models: *m}]\n"
    )
    plans = load_settings(path, {}, ["plans.0.models.allow=[y]"]).settings.plans
    assert [plan.models.allow for plan in plans] == [("y",), ("x",)]


def test_a_path_that_a_later_source_gives_is_not_the_files(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text(SMALLEST + "listen: {unix_socket: s}\n")
    loaded = load_settings(path, {"RADIXGATE__LISTEN": "{unix_socket: other}"})
    assert loaded.settings.listen.unix_socket == "other"
    sources = {name: source for name, _, source in loaded.leaves()}
    assert sources["$.listen.unix_socket"] == "environment RADIXGATE__LISTEN"


def test_digits_of_other_scripts_are_no_traceback(file):
    assert "\u00b2" in refusal(file(SMALLEST), {}, "workers.\u00b2.url=x")


@pytest.mark.parametrize(
    ("kv_events", "problem"),
    [
        (
            "never",
            ": there is no 'never'; choose auto, off, or the address of the events: {endpoint: tcp://host:5557}",
        ),
        (
            "[1]",
            ": expected auto, off, or the address of the events: {endpoint: tcp://host:5557}, got a list",
        ),
        ("{}", ".endpoint: is missing"),
        ("{endpont: 'tcp://h:1'}", ".endpont: unknown setting (did you mean endpoint?)"),
        (
            "{endpoint: 'http://h'}",
            ".endpoint: expected a ZMQ address, such as tcp://host:5557 or ipc:///path",
        ),
        ("{endpoint: 'tcp://h:1', ranks: 0}", ".ranks: expected a whole number, at least 1"),
        ("{endpoint: 'tcp://h:0'}", ".endpoint: the ports, one for each rank, must be from 1 to 65535"),
        (
            "{endpoint: 'tcp://h:65535', ranks: 2}",
            ".endpoint: the ports, one for each rank, must be from 1 to 65535",
        ),
        (
            "{endpoint: 'tcp://h:10', replay_endpoint: 'tcp://h:11', ranks: 2}",
            ".replay_endpoint: overlaps the ports of endpoint; each rank needs a port for each",
        ),
        (
            "{endpoint: 'ipc:///x', ranks: 2}",
            ".endpoint: several ranks need tcp://, with a port for each rank",
        ),
    ],
)
def test_where_a_worker_publishes_is_refused_with_its_path(kv_events, problem):
    workers = f"[{{id: w, kind: vllm, url: 'http://h:1', kv_events: {kv_events}}}]"
    with pytest.raises(SettingsProblem) as refused:
        load_settings(None, {}, [f"workers={workers}"])
    assert str(refused.value) == f"$.workers[0].kv_events{problem}"


ISSUER = {"issuer": "https://login.example.com", "audiences": ["radixgate"]}
A_WORKER = 'workers=[{"id": "w", "kind": "vllm", "url": "http://127.0.0.1:1"}]'


@pytest.mark.parametrize(
    ("issuers", "said"),
    [
        ([{**ISSUER, "algorithms": ["none"]}], "[0].algorithms[0]: there is no 'none'"),
        ([{**ISSUER, "algorithms": ["HS256"]}], "[0].algorithms[0]: there is no 'HS256'"),
        ([{**ISSUER, "audiences": []}], "[0].audiences: expected a list of at least 1 entry"),
        ([{**ISSUER, "issuer": "login"}], "[0].issuer: expected an http"),
        ([{**ISSUER, "jwks_url": "http://h:0"}], "[0].jwks_url: the port"),
        ([ISSUER, ISSUER], ": 'https://login.example.com' is named twice"),
        ([{**ISSUER, "scopes": {"x": "root"}}], "there is no 'root'"),
    ],
)
def test_issuers_of_tokens_are_refused_with_their_path(issuers, said):
    with pytest.raises(SettingsProblem) as problem:
        load_settings(None, {}, [f"authentication.tokens={json.dumps(issuers)}", A_WORKER])
    assert str(problem.value).startswith("$.authentication.tokens")
    assert said in str(problem.value)


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (Identifier, "acme"),
        (Name, "a plan"),
        (HttpUrl, "http://host:8000/path"),
        (ZmqUrl, "tcp://host:5557"),
        (FilePath, "/run/socket"),
        (KeyHash, HASH),
        (RedisUrl, "embedded"),
        (DatabaseUrl, "none"),
    ],
    ids=["identifier", "name", "http", "zmq", "path", "hash", "redis", "database"],
)
def test_a_newline_at_the_end_makes_no_second_value_of_the_same_look(kind, good):
    assert msgspec.convert(good, kind) == good
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(f"{good}\n", kind)


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("vllm", "provider: {models: {m: {}}}", "$.workers[0].provider: a provider must be of kind openai"),
        (
            "openai",
            "provider: {models: {m: {}}}, models: [m]",
            "$.workers[0].models: the models of a provider",
        ),
        ("openai", "provider: {models: {}}", "$.workers[0].provider.models: "),
        ("openai", "provider: {models: {m: {prices: {input: 1}}}}", "$.workers[0].provider.models"),
        ("openai", "provider: {models: {m: {}}, after_ms: 1}", "$.workers[0].provider.after_ms: "),
        ("openai", "provider: {models: {m: {}}, concurrency: 0}", "$.workers[0].provider.concurrency: "),
        (
            "openai",
            "provider: {models: {m: {}}, limits: [{requests: 1, spend: 1}]}",
            "$.workers[0].provider.limits[0]: a limit names one of",
        ),
        (
            "openai",
            "provider: {models: {m: {}}, limits: [{requests: 1, until: 2030-01-01}]}",
            "$.workers[0].provider.limits[0].until: limits of a provider cannot have an end",
        ),
    ],
    ids=["kind", "models", "none", "price", "at once", "nobody at one time", "two limits", "an end"],
)
def test_providers_that_are_wrong(file, kind, more, expected):
    said = refusal(file(f"workers: [{{id: a, kind: {kind}, url: 'http://localhost:1', {more}}}]\n"))
    assert said.startswith(expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("kind: kubernetes", ".name: a source of kind kubernetes needs a name"),
        ("kind: kubernetes, name: a, selector: b=c", ": name, selector and inference_pool are alternatives"),
        ("kind: dns, selector: b=c", ".selector: is for sources of kind kubernetes"),
        ("kind: redis, name: a", ".name: a source of kind redis has no name"),
        (
            "kind: kubernetes, inference_pool: a, port: 1",
            ".port: the ports of workers are those of the Infer",
        ),
        ("kind: kubernetes, selector: a=b}, {kind: kubernetes, selector: a=b", ": is named twice"),
    ],
)
def test_a_source_finds_workers_in_one_way(file, source, expected):
    said = refusal(file(f"discovery: [{{{source}}}]\n"))
    assert said.startswith(f"$.discovery[{1 if 'twice' in expected else 0}]{expected}")


@pytest.mark.parametrize("kind", ["dns", "kubernetes", "file", "redis"])
def test_what_is_behind_a_name_is_no_provider(file, kind):
    name = "" if kind == "redis" else "name: n, "
    said = refusal(file(f"discovery: [{{kind: {kind}, {name}provider: {{models: {{m: {{}}}}}}}}]\n"))
    assert said == "$.discovery[0].provider: unknown setting"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("headers: {'x y': v}", "$.workers[0].headers: 'x y' is not a name of a header"),
        ("headers: {Host: v}", "$.workers[0].headers: Host is set by the gateway itself"),
        ("tls: {}", "$.workers[0].tls: the address of the worker is not https://"),
        ("tls: {certificate: a}", "$.workers[0].tls: certificate and key belong together"),
        ("tls: {ca: nowhere.pem}", "$.workers[0].tls.ca: there is no file "),
    ],
    ids=["name", "own", "http", "half", "missing"],
)
def test_ways_to_a_worker_that_are_wrong(file, more, expected):
    said = refusal(file(f"workers: [{{id: a, kind: openai, url: 'http://localhost:1', {more}}}]\n"))
    assert said.startswith(expected)


def test_a_header_quotes_no_value_and_may_be_a_reference(file):
    worker = "workers: [{id: a, kind: openai, url: 'http://localhost:1', headers: {x-pass: '${env:PASS}'}}]\n"
    (one,) = load_settings(file(worker), {"PASS": "s3cret"}).settings.workers
    assert one.headers == {"x-pass": Secret("s3cret")}
    assert "s3cret" not in repr(one)
    assert "s3cret" not in refusal(file(worker), {"PASS": "s3cret\r\nx-evil: 1"})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("splits: {a: 0, b: 0}", "$.models[0].splits: at least one weight has to be above 0"),
        ("splits: {a: -1}", "$.models[0].splits[...]: expected a number, at least 0"),
        ("splits: {a: few}", "$.models[0].splits[...]: expected a number, got text"),
        ("fallbacks: [m]", "$.models[0].fallbacks: a model cannot be its own fallback"),
    ],
    ids=["nothing", "negative", "no number", "itself"],
)
def test_other_models_that_are_wrong(file, more, expected):
    assert refusal(file(SMALLEST + f"models: [{{name: m, {more}}}]\n")).startswith(expected)
