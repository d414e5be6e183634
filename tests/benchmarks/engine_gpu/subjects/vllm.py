"""VLLM as a subject, through its class LLM. It runs under the Python that has vLLM."""

from typing import Any

from tests.benchmarks.engine_gpu.orders import Order, Prompts, answer, read_order


class VllmSubject:
    """Runs all requests of a measurement to their end."""

    def __init__(self, order: Order) -> None:
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self._llm = LLM(
            model=order.model,
            dtype=order.dtype,
            max_model_len=order.context,
            max_num_seqs=max(order.batches),
            enable_prefix_caching=False,
            seed=0,
            disable_log_stats=True,
        )

    def __call__(self, prompts: Prompts, new_tokens: int) -> None:
        """Generate so many tokens after each prompt."""
        params = self._params(max_tokens=new_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        asked: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        self._llm.generate(asked, params, use_tqdm=False)


if __name__ == "__main__":
    asked = read_order()
    answer(asked, VllmSubject(asked))
