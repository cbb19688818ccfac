"""Copy a configuration file with some keys set. It is YAML or TOML by its suffix, else JSON."""

import json


def rewrite(source, target, keys):
    """Write a copy of `source` to `target` with every key (`a.b.c`) set to its value; missing tables are added.

    Raises:
        ValueError: the file is not of its kind, or a key leads through a value that is not a table.
        ImportError: the package that reads and writes this kind is not installed.
    """
    read, write = kind_of(source)
    content = read(source.read_text())
    for key, value in keys.items():
        put(content, key, value)
    target.write_text(write(content))


def put(content, key, value):
    """Set a dotted key; raises ValueError if it leads through a value that is not a table."""
    *tables, last = key.split(".")
    for name in tables:
        if not isinstance(content, dict):
            break
        content = content.setdefault(name, {})
    if not isinstance(content, dict):
        raise ValueError(f"`{key}` leads through a value that is not a table")
    content[last] = value


def kind_of(path):
    """Return two functions for files of this suffix, which parse a text and write one."""
    if path.suffix in (".yaml", ".yml"):
        import yaml

        return yaml.safe_load, lambda content: yaml.safe_dump(content, sort_keys=False)
    if path.suffix == ".toml":
        import tomlkit

        return tomlkit.parse, tomlkit.dumps
    return json.loads, lambda content: json.dumps(content, indent=2) + "\n"
