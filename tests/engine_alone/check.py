"""Runs a copy of workers/engine with only torch, numpy, safetensors and tokenizers installed.

    PYTHONPATH=COPY python tests/engine_alone/check.py

It exits with 1 and a line on what is wrong: other tokens in a batch than alone, or a package that is none of the
four nor needed by them.
"""

import re
import sys
import tempfile
from importlib import metadata
from pathlib import Path

NEEDS = ("torch", "numpy", "safetensors", "tokenizers")


def third_party() -> set[str]:
    """Top-level modules that were loaded from installed packages."""
    return {name.partition(".")[0] for name in sys.modules} & set(metadata.packages_distributions())


def needed(names: tuple[str, ...]) -> set[str]:
    """The distributions, and what they need without extras, by their plain names."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            wants = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        waiting += [re.match(r"[\w.-]+", want)[0] for want in wants if "extra ==" not in want]
    return found


def load_the_four() -> set[str]:
    """What torch and the others load by themselves, which differs from one machine to the next."""
    import numpy  # noqa: F401
    import safetensors.numpy
    import safetensors.torch
    import tokenizers
    import torch

    torch.set_num_threads(1)
    assert tokenizers.__version__
    assert safetensors.__version__
    return third_party()


def answers(checkpoint: Path, **settings: object) -> list[list[int]]:
    """Greedy tokens: each prompt alone and then all together must give the same."""
    from workers.engine.config.engine_config import EngineConfig
    from workers.engine.engine import Engine
    from workers.engine.request import Request
    from workers.engine.sampling.sampling_params import SamplingParams

    prompts = [[5, 9, 200, 31] * 6, [8], [40, 41, 42] * 9]
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    engine = Engine.load(EngineConfig(model=checkpoint, chunk_tokens=16, **settings))

    def run(numbers: range, salt: str) -> list[list[int]]:
        tokens: dict[str, list[int]] = {str(number): [] for number in numbers}
        for number in numbers:
            engine.submit(Request(id=str(number), prompt=prompts[number], params=params, salt=salt))
        while engine.has_work:
            for output in engine.step():
                tokens[output.id] += output.tokens
        return list(tokens.values())

    alone = [run(range(number, number + 1), "alone")[0] for number in range(len(prompts))]
    for salt in ("batch", "batch", "alone"):
        if run(range(len(prompts)), salt) != alone:
            raise SystemExit(
                f"{checkpoint.name} {settings}: a batch gives other tokens than each prompt alone"
            )
    return alone


def main() -> None:
    """Four families, quantised weights and keys, then the packages."""
    baseline = load_the_four()
    import torch

    import workers.engine
    from workers.engine.tiny_checkpoint import build

    shape = {"hidden": 64, "intermediate": 96, "vocab": 300, "context": 256, "init": 0.3}
    with tempfile.TemporaryDirectory() as directory:
        for family in ("llama", "qwen2", "qwen3", "mistral"):
            window = 0 if family == "llama" else 10
            checkpoint = build(Path(directory) / family, architecture=family, window=window, **shape)
            plain = answers(checkpoint)
            for settings in ({"quantization": "int8"}, {"quantization": "int4"}, {"kv_dtype": "int8"}):
                answers(checkpoint, **settings)
            if not all(len(tokens) == 12 for tokens in plain):
                raise SystemExit(f"{family}: an answer is not of 12 tokens")
    owners = metadata.packages_distributions()
    allowed = needed(NEEDS)
    strange = {
        name
        for name in third_party() - baseline
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners[name]} & allowed
    }
    # An editable installation of the project itself is the copy that runs here.
    if strange - {"workers"}:
        raise SystemExit(f"the engine loads {', '.join(sorted(strange))}, and it may not")
    where = Path(next(iter(workers.engine.__path__)))
    print(f"ok: Python {sys.version.split()[0]}, torch {torch.__version__}, engine from {where}")


if __name__ == "__main__":
    main()
