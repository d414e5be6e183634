"""A small inference engine: paged KV blocks, prefix reuse, continuous batching, chunked prefill.

    Engine.step():  plan    = scheduler.plan()          pure Python, no tensors
                    sampled = runner.run(plan)          tensors only, no policy
                    scheduler.commit(plan, sampled)     tokens, finishes, cache inserts

Three rules keep it small: the scheduler touches no tensor, the runner takes no scheduling decision, and nothing is
global. The packages, from the top down; each imports only what is below it:

async_engine        the engine behind an event loop
ablation            measures the gain of each technique, one at a time
disaggregation      prefill on one engine, decode on another
engine              submits requests, computes steps, returns outputs (request, errors, metrics, loads)
engine_parts        builds the parts of an engine from a checkpoint; tiny_checkpoint writes a small one (tiny_text)
speculative         drafters for speculative decoding; draft_tree: their drafts; fit_medusa: makes Medusa heads
execution           runs a step plan on the model
scheduler           plans what each step computes
model, attention    the decoder-only transformer
kv                  blocks of keys and values, shared by a prefix tree
sampling, grammar   from logits to tokens, in a grammar's bounds
tokenization        text to tokens and back; id_tensor: tokens as a tensor
checkpoint, config  the model's description, and the settings
"""
