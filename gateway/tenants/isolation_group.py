"""The isolation group of a tenant: tenants of one group share cached prefixes, others never do.

The group is part of the namespace of the prefix index (PromptHasher.namespace), and engines get it as `cache_salt`
(radix_cache/namespace.py).
"""

from gateway.settings.tenants import IsolationSettings


def isolation_group(tenant: str, isolation: IsolationSettings) -> str:
    """Return the name of the group of tenants that share one cache.

    Names of tenants and of groups cannot be confused: each is prefixed with its kind.
    """
    if isolation.mode == "shared":
        return ""
    return f"group:{isolation.group}" if isolation.mode == "group" else f"tenant:{tenant}"
