"""Who is asking: keys, tenants, their isolation. Read: tenant, keys, directory, yaml_directory, auth."""
