"""Values that all packages share: the request and its context, model, tenant, and the errors for clients.

exchange          one HTTP exchange with a client: the request is read from it, the answer written to it
request           a client's request, decoded; request_context: with its tenant, model and service class
prompt_blocks     the prompt as hashed blocks and token counts
tenant, model     the account that a key belongs to; the catalogue's entry for a model
token_usage       token counts as workers report them; answer_tally: counted here, where a worker does not
request_headers   headers with one meaning: a secret that was sent once, the encoding of the body
errors            every error that a client can see, with its HTTP status
whole_number      a number that a client writes in a query parameter
memory_budget     the memory that all requests of a process share
"""
