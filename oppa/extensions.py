"""Load the parts that others add: classes named `module:Class`, and entry points of installed packages.

Every part implements a protocol. Its class is checked for the protocol's methods when it is loaded, before any work begins.
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
"""Value of an option that a launcher or a scheduler takes."""


def load_class(path: str, *, kind: str, protocol: type) -> Any:
    """Return the class, or the function that makes an instance, which `path` names as `module:Class`.

    A module of the current folder is found, too.

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
            raise InputError(f"`{module_name}` has no `{name}`", hint=nearest(part, others) if others else "the module is empty")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"`{path}` is of type `{type(found).__name__}`, not a class", hint=f"name a class: a {kind} is an instance of it")
    if isinstance(found, type):
        require_methods(found, protocol, path=path, kind=kind)
    return found


def require_methods(found: object, protocol: type, *, path: str, kind: str) -> None:
    """Raise InputError, which names the first lacking member, unless a class or an object has the members of a protocol.

    A class is checked for methods alone, as its instances may set the attributes.
    """
    members = {name: value for name, value in vars(protocol).items() if not name.startswith("_")}
    methods = [name for name, value in members.items() if inspect.isfunction(value)]
    for method in methods:
        if not callable(getattr(found, method, None)):
            raise InputError(f"`{path}` has no method `{method}`", hint=f"a {kind} has the methods {', '.join(methods)}")
    for name, value in members.items():
        if isinstance(value, property) and not isinstance(found, type) and not hasattr(found, name):
            raise InputError(f"`{path}` has no attribute `{name}`", hint=f"add it to the class: every {kind} has it")


def parts(group: str, built_in: "Iterable[EntryPoint]") -> "dict[str, EntryPoint]":
    """Return the entry points of a group by name; those that are built in take precedence over installed ones."""
    from importlib.metadata import entry_points

    return {each.name: each for each in (*entry_points(group=group), *built_in)}


def require_options(given: Mapping[str, OptionValue], known: Collection[str], *, owner: str) -> None:
    """Raise InputError, which names the nearest option, if one is given that its owner does not take."""
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "it takes no options: remove this one, or choose another"
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
        raise InputError(f"`{name}` cannot be imported: {error!r}", hint=f"`python -c 'import {name}'` shows where") from error
