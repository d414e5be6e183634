"""Values that all packages share: the request and its context, model, tenant, and the errors for clients."""
