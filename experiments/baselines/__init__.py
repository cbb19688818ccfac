"""Provide the designers of others, which `oppa` is compared with; `designers.toml` gives each a short name in a checkout."""
