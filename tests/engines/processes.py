"""Real vLLM, SGLang and llama.cpp as processes, on a CPU, with small caches that evict."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.stage.ports import free_ports

MODEL = "tiny"
ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".tools" / "engines"
PLUGIN = Path(__file__).parent / "plugin"
START_SECONDS_MAX = 500
FLUSH_SECONDS_MAX = 60
CONTEXT_LENGTH = 1024


class Engine:
    """One server and all of its processes. `page_size`, `kv_tokens`: of its cache."""

    kind: str
    page_size: int
    kv_tokens: int
    running_metric: str
    generated_metric: str
    program: tuple[str, ...]
    """What its interpreter runs."""
    python = INSTALLED / "venv" / "bin" / "python"

    def __init__(self, checkpoint: Path, log: Path) -> None:
        self.checkpoint = checkpoint
        self.log = log
        self.port, *self.event_ports = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """What its interpreter is told."""
        raise NotImplementedError

    def on_cpu(self) -> list[str]:
        """Its flags for a CPU and a small cache: those that have nothing to do with gateways."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

    def start(self) -> None:
        """Begins to start; `wait` for it."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [str(self.python), *self.command()],
            stdout=self.log.open("ab"),
            stderr=subprocess.STDOUT,
            env={**own, **self.environment()},
            cwd=self.log.parent,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Until it answers requests."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with suppress(OSError):
                self.complete()
                return
            lives = self.process.poll() is None and time.monotonic() < deadline
            assert lives, self.log.read_text()[-4000:]
            time.sleep(0.5)

    def signal(self, number: int) -> None:
        """To all of its processes."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def flush(self) -> None:
        raise NotImplementedError

    def complete(self) -> None:
        """The shortest request that there is. It fills no page."""
        self.post("/v1/completions", {"model": MODEL, "prompt": [5], "max_tokens": 1})

    def running(self) -> float:
        """Requests that it works on."""
        return self._metric(self.running_metric)

    def generated(self) -> float:
        """Tokens that it has generated since it started, as far as it has counted them."""
        return self._metric(self.generated_metric)

    def _metric(self, name: str) -> float:
        with urlopen(f"{self.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        values = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M)
        assert values, text[:2000]
        return sum(map(float, values))

    def post(self, path: str, body: object = None) -> bytes:
        content = json.dumps(body).encode() if body is not None else b""
        request = Request(self.url + path, content, {"Content-Type": "application/json"}, method="POST")
        with urlopen(request, timeout=60) as answer:
            return answer.read()


class Vllm(Engine):
    """It names its sockets itself: with every start they are others."""

    kind = "vllm"
    page_size = 32
    kv_tokens = 64 * page_size
    running_metric = "vllm:num_requests_running"
    generated_metric = "vllm:generation_tokens_total"
    program = ("-m", "vllm.entrypoints.openai.api_server")

    def command(self) -> list[str]:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": "tcp://*:0",
            "replay_endpoint": "tcp://*:0",
            "topic": f"kv@{MODEL}",
        }
        return [
            *self.program,
            *("--model", str(self.checkpoint), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--enable-prefix-caching", "--block-size", str(self.page_size)),
            *("--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *self.on_cpu(),
        ]

    def on_cpu(self) -> list[str]:
        return [
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT_LENGTH)),
            # One block is never used.
            *("--num-gpu-blocks-override", str(self.kv_tokens // self.page_size + 1)),
            *("--max-num-seqs", "16", "--uvicorn-log-level", "warning"),
        ]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_LOOPBACK_IP": "127.0.0.1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_SERVER_DEV_MODE": "1",
        }

    def flush(self) -> None:
        """It says so with its next step."""
        self.post("/reset_prefix_cache")


class Sglang(Engine):
    """Its sockets are where it is told: it comes back to the same."""

    kind = "sglang"
    page_size = 16
    kv_tokens = 96 * page_size
    running_metric = "sglang:num_running_reqs"
    generated_metric = "sglang:generation_tokens_total"
    program = (str(PLUGIN / "sglang_on_cpu.py"),)

    def command(self) -> list[str]:
        events, replay = self.event_ports
        published = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
            "topic": f"kv@{MODEL}",
        }
        return [
            *self.program,
            *("--model-path", str(self.checkpoint), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--page-size", str(self.page_size), "--enable-cache-report", "--enable-metrics"),
            *("--kv-events-config", json.dumps(published)),
            *self.on_cpu(),
        ]

    def on_cpu(self) -> list[str]:
        return [
            *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
            *("--dtype", "float32", "--context-length", str(CONTEXT_LENGTH), "--disable-cuda-graph"),
            *("--max-running-requests", "16", "--max-total-tokens", str(self.kv_tokens)),
        ]

    def environment(self) -> dict[str, str]:
        paths = f"{INSTALLED / 'overlay'}:{PLUGIN}"
        return {**super().environment(), "PYTHONPATH": paths, "SGLANG_PLATFORM": "torch_cpu"}

    def flush(self) -> None:
        """Empty the cache; SGLang refuses while it still ends the request of the test before."""
        until = time.monotonic() + FLUSH_SECONDS_MAX
        while True:
            try:
                self.post("/flush_cache")
            except HTTPError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return


class LlamaCpp(Engine):
    """It reads the checkpoint as a GGUF file, and finds a prefix again token by token."""

    kind = "llamacpp"
    page_size = 1
    kv_tokens = 2 * CONTEXT_LENGTH
    running_metric = "llamacpp:requests_processing"
    generated_metric = "llamacpp:tokens_predicted_total"
    python = ROOT / ".tools" / "llamacpp" / "bin" / "python"
    program = (str(Path(__file__).parent / "llama_server.py"),)

    def command(self) -> list[str]:
        return [*self.program, str(self.file), MODEL, str(self.port), str(CONTEXT_LENGTH)]

    @property
    def file(self) -> Path:
        return self.log.with_suffix(".gguf")

    def write_file(self) -> None:
        """Convert the checkpoint."""
        script = Path(__file__).parent / "gguf_file.py"
        subprocess.run([str(self.python), str(script), str(self.checkpoint), str(self.file)], check=True)


class SglangOfOneTokenPages(Sglang):
    """SGLang without a page size given: pages of one token."""

    page_size = 1
    kv_tokens = Sglang.kv_tokens


class SglangOfTwoRanks(Sglang):
    """Two data-parallel ranks, each with a cache of that size."""

    def on_cpu(self) -> list[str]:
        return [*super().on_cpu(), "--dp-size", "2"]

    def environment(self) -> dict[str, str]:
        # One CPU for each: by default each would want a NUMA node.
        return {**super().environment(), "SGLANG_CPU_OMP_THREADS_BIND": f"0|{(os.cpu_count() or 1) - 1}"}
