"""`make bench-engine-gpu`: the embedded engine, nano-vllm and vLLM on one GPU, beside what memory can deliver."""
