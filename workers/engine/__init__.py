"""A small inference engine: paged KV blocks, prefix reuse, continuous batching, chunked prefill.

    Engine.step():  plan    = scheduler.plan()          pure Python, no tensors
                    sampled = runner.run(plan)          tensors only, no policy
                    scheduler.commit(plan, sampled)     tokens, finishes, cache inserts

Three rules keep it small. The scheduler touches no tensor; the runner decides nothing; nothing is global.
Read in this order: `request`, `engine`, `sched/sequence`, `sched/policy`, `sched/scheduler`, `kv/prefix`,
`exec/runner`, `model/decoder`, `attention/sdpa`, `sample/sampler`, `metrics`, `parts`, `aio`. `ladder` shows what
each of its ideas brings.
"""
