"""Tenants and their credentials: finds the tenant of an API key or a token.

`authentication` is the entry point; `tenant_register` compares a presented key with those that it has
(`valid_entry`), and joins the limits of plan, tenant, organisation and key (`_assemble`); `auth_throttle` slows
down clients that guess. `directory` is the Protocol that finds the tenant of a key. `yaml_directory` implements it
for the settings file, `sql_directory` for the database; the latter follows changes, including those of other
gateways, such as a revoked key. Both keep all tenants in memory in that register; `sealed_tenants` are those that a
gateway starts with while the database is away. `isolation_group` names the group of tenants that share cached
prefixes. `token_verifier`, `token_issuer` and `issuer_key_set` verify the tokens of identity providers, with
`token_errors`. `keys` makes and hashes API keys; `key_lifecycle` and `operator_lifecycle` create, rotate and revoke
credentials in the database. `limits` chooses the limits in force at a moment. `kubernetes_directory` takes tenants
from ConfigMaps and Secrets of a cluster, which `kubernetes_tenants` reads.
"""
