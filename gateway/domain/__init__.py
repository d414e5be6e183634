"""The values that all rooms share: the request and its context, the model, the tenant, the errors a client can see."""
