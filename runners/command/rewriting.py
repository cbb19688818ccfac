"""A copy of a configuration file with some keys set: JSON, YAML or TOML, by the file's suffix."""

import json


def rewrite(source, target, keys):
    """Write `target`: `source` with every key (`a.b.c`, tables made as needed) at its value.

    Raises:
        ValueError: the file is none of these kinds, or a key leads through something that is no table.
        ImportError: the package that reads and writes this kind is not installed.
    """
    read, write = kind_of(source)
    content = read(source.read_text())
    for key, value in keys.items():
        put(content, key, value)
    target.write_text(write(content))


def put(content, key, value):
    """Set a dotted key."""
    *tables, last = key.split(".")
    for name in tables:
        if not isinstance(content, dict):
            break
        content = content.setdefault(name, {})
    if not isinstance(content, dict):
        raise ValueError(f"`{key}` leads through something that is no table")
    content[last] = value


def kind_of(path):
    """How to read and write a file of this suffix; both from and to text."""
    if path.suffix == ".json":
        return json.loads, lambda content: json.dumps(content, indent=2) + "\n"
    if path.suffix in (".yaml", ".yml"):
        import yaml

        return yaml.safe_load, lambda content: yaml.safe_dump(content, sort_keys=False)
    if path.suffix == ".toml":
        import tomlkit

        return tomlkit.parse, tomlkit.dumps
    raise ValueError(f"`{path.name}` is neither JSON nor YAML nor TOML")
