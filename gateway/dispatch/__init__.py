"""Dispatch: finds a worker for a request and gets its answer.

Read in this order:

reservations         quota is reserved and settled here; output_estimates and costs compute how much
acquisition/         from the ranking to a placement: at once, in a turn, by preemption, at a provider
placement            the chosen worker, and what is reserved on it; prefill_decode_pairs: on two workers
pending_request      the notes that dispatch keeps on a request; last_ranking: of one that waits for a worker of its
                     choice
attempts             a placement, the sending, the end; prefix_prediction: the blocks its worker will hold
retries              whether another worker is tried after a failure, and which
hedged_opening       a second worker beside the first; hedging: its rules
worker_calls         the call that a worker gets
attempt_reports      the outcome of each attempt, for the fleet and the index
charged_tokens       the tokens that a request is charged: the worker's count, or the gateway's own for an answer
                     that was cut or abandoned
preemption           batch requests that may have to give up their placement
refusals             the errors of requests that a limit or every worker refuses
idempotency          the name of a request under a client's own key; repeats are recognised in
                     gateway/quotas/lua/reserve.lua, and no answer is kept
provider_quota       the limits of outside providers
dispatch             holds all parts; dispatch_limits has their bounds, dispatch_follows_fleet what they do when the
                     fleet changes
queue_report         the report of waiting requests for operators; queue_reporter: of all gateways
"""
