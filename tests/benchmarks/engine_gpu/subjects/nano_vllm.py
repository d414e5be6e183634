"""nano-vllm as a subject. It runs under the Python that has nano-vllm.

It refuses greedy sampling, so it samples at temperature 1; its prefix cache finds nothing in random prompts.
"""

from tests.benchmarks.engine_gpu.orders import Order, Prompts, answer, read_order


class NanoVllmSubject:
    """Runs all requests of a measurement to their end."""

    def __init__(self, order: Order) -> None:
        from nanovllm import LLM, SamplingParams

        self._params = SamplingParams
        self._llm = LLM(order.model, max_model_len=order.context, max_num_seqs=max(order.batches))

    def __call__(self, prompts: Prompts, new_tokens: int) -> None:
        """Generate so many tokens after each prompt."""
        params = self._params(max_tokens=new_tokens, temperature=1.0, ignore_eos=True)
        self._llm.generate(prompts, params, use_tqdm=False)


if __name__ == "__main__":
    asked = read_order()
    answer(asked, NanoVllmSubject(asked))
