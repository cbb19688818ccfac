"""Load extensions: classes named `module:Class`, and entry points of installed packages.

Every extension implements a protocol. Its class is checked for the protocol's methods when it is loaded, before any work begins.
"""

import importlib
import inspect
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppa.errors import EnvironmentLackingError, InputError, nearest

if TYPE_CHECKING:  # the help imports this module, and must stay fast
    from importlib.metadata import EntryPoint

OptionValue = str | int | float | bool
"""Value of an option of a launcher or a scheduler."""


def load_class(path: str, *, kind: str, protocol: type) -> Any:
    """Return the class, or the factory function, that `path` names as `module:Class`.

    Modules in the current folder can be loaded, too.

    Args:
        kind: What the class is, for messages, such as `designer`.
        protocol: Protocol whose methods the class must have.

    Raises:
        InputError: the path is malformed, the module cannot be imported, or the class does not exist or lacks a method.
        EnvironmentLackingError: the module imports a package that is not installed.
    """
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise InputError(f"`{path}` does not name a class", hint="write `module:Class`")
    found: Any = _import(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            others = [other for other in vars(found) if not other.startswith("_")]
            raise InputError(f"`{module_name}` has no `{name}`", hint=nearest(part, others) if others else "define it: the module is empty")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"`{path}` is of type `{type(found).__name__}`, not a class", hint=f"name the class of a {kind}")
    if isinstance(found, type):
        require_methods(found, protocol, path=path, kind=kind)
    return found


def require_methods(found: object, protocol: type, *, path: str, kind: str) -> None:
    """Raise InputError, which names the first missing member, unless a class or an object has the members of a protocol.

    Only the methods of a class are checked, as its instances may set the attributes.
    """
    members = {name: value for name, value in vars(protocol).items() if not name.startswith("_")}
    methods = [name for name, value in members.items() if inspect.isfunction(value)]
    for method in methods:
        if not callable(getattr(found, method, None)):
            raise InputError(f"`{path}` has no method `{method}`", hint=f"define it: a {kind} has the methods {', '.join(methods)}")
    for name, value in members.items():
        if isinstance(value, property) and not isinstance(found, type) and not hasattr(found, name):
            raise InputError(f"`{path}` has no attribute `{name}`", hint=f"add it to the class: every {kind} requires it")


def parts(group: str, built_in: "Iterable[EntryPoint]") -> "dict[str, EntryPoint]":
    """Return the entry points of a group by name; built-in ones take precedence over installed ones."""
    from importlib.metadata import entry_points

    return {each.name: each for each in (*entry_points(group=group), *built_in)}


def require_options(given: Mapping[str, OptionValue], known: Collection[str], *, owner: str) -> None:
    """Raise InputError, which names the nearest valid option, for an option that its owner does not accept."""
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "remove it: no options are accepted"
            raise InputError(f"{owner} has no option `{name}`", hint=hint)


def _import(name: str) -> Any:
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)  # last, so that a file there hides no installed module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        lacking = error.name or ""
        if name != lacking and not name.startswith(f"{lacking}."):
            hint = f"install it into the Python that runs oppa, `{sys.executable}`"
            raise EnvironmentLackingError(f"`{name}` needs `{lacking}`, which is not installed", hint=hint) from error
        hint = f"run oppa in the folder of `{lacking}.py`, add that folder to PYTHONPATH, or install the package"
        raise InputError(f"there is no module `{lacking}`", hint=hint) from None
    except Exception as error:  # the module is the user's own, and may raise anything
        raise InputError(f"`{name}` cannot be imported: {error!r}", hint=f"run `python -c 'import {name}'` to see where") from error
