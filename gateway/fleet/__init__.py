"""The workers of this gateway.

fleet              all of them, and their probes; worker_lookup finds those of a model, model_groups the models that
                   share workers
worker             one of them; provider: the terms of an outside provider
worker_health      its states and its circuit breaker, which take it out of rotation and bring it back; stalls:
                   workers that keep their connections open and send nothing
loads, ranks       how busy a worker and its data-parallel ranks are: a LoadShare, made by
                   gateway/dispatch/placement.py, counts a request up, and down at its end
load_feeds         what engines report of their load and of their speed (reported_prefill_rate); external_load keeps
                   what no gateway sent
response_shape     the fields of a worker's whole answers

An engine's own load comes in two ways: SGLang publishes it (`load_feeds`); that of vLLM is read at each probe
(workers/adapters/vllm.py), and taken over by `_take_over` of `fleet`.

The loads that other gateways cause come as sums with the shared queue (gateway/queueing/shared/membership.py), as
single requests through `announced_dispatches`, from other cells through gateway/cells/cell_loads.py;
policies/others_load.py estimates what is left of them between two reports. Speeds are learnt from answers in
policies/speeds.py. Of many workers policies/load_order keeps the order.
"""
