"""Find the options that a program's source declares, with the texts that are their defaults."""

import ast
import dataclasses
from collections.abc import Iterator, Mapping

from oppa.problem.source_names import Function, SourceNames, dotted

_PARSERS = {"add_argument", "option", "Option"}
"""Calls that declare an option: those of argparse, click and typer."""
_COMMANDS = {"command", "option", "argument", "callback"}
"""Decorators of click and typer, whose functions have options as parameters."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptionDefault:
    """Describes an option that a program declares with a text as its default."""

    names: tuple[str, ...]
    value: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """Holds the options of a program."""

    spelled: Mapping[str, str]
    """Each option as a line has it, by the name of its attribute, parameter or global variable."""
    defaults: tuple[OptionDefault, ...]
    parsed: frozenset[str] = frozenset()
    """Functions and classes whose parameters and fields are options."""
    variables: frozenset[str] = frozenset()
    """Global variables that are options."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """Holds an option as a source declares it."""

    names: tuple[str, ...]
    attribute: str
    default: ast.expr | None


def program_options(tree: ast.Module) -> ProgramOptions:
    """Return the options that a source declares."""
    declared, names = [*_of_calls(tree)], SourceNames(tree)
    found = [(each, "" if each.default is None else _text_of(each.default, names)) for each in declared]
    return ProgramOptions(
        spelled={each.attribute: each.names[0] for each in declared},
        defaults=tuple(OptionDefault(names=each.names, value=text) for each, text in found if text),
        parsed=frozenset(node.name for node in ast.walk(tree) if isinstance(node, Function) and _is_command(node)),
    )


def global_options(tree: ast.Module) -> ProgramOptions:
    """Return the options of a source whose global variables are options: those that are bound to a text once."""
    bound = [node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign) and len(node.targets) == 1]
    names = [target.id for target in bound if isinstance(target, ast.Name)]
    found: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if names.count(name) == 1:
                found[name] = text
    defaults = tuple(OptionDefault(names=(f"--{name}",), value=value) for name, value in found.items())
    return ProgramOptions(spelled={name: f"--{name}" for name in found}, defaults=defaults, variables=frozenset(found))


def _of_calls(tree: ast.Module) -> Iterator[_Declared]:
    """Yield the options that calls declare."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and dotted(node).rpartition(".")[2] in _PARSERS):
        texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        names = sorted((text for text in texts if text.startswith("-")), key=lambda name: not name.startswith("--"))
        stated = {each.arg: each.value for each in call.keywords}
        attribute = next((text for text in texts if not text.startswith("-")), names[0] if names else "")
        match stated.get("dest"):
            case ast.Constant(value=str(text)):
                attribute = text
        if names:
            yield _Declared(names=tuple(names), attribute=attribute.lstrip("-").replace("-", "_"), default=stated.get("default"))


def _text_of(default: ast.expr, names: SourceNames) -> str:
    """Return the text of a default; empty for a number, a switch, None, or the folder of the program."""
    text = next(iter(names.beginning(default).texts), "")
    return "" if text == "." and not isinstance(default, ast.Constant) else text


def _is_command(function: Function) -> bool:
    """Return whether a decorator makes the parameters of a function options."""
    return any(dotted(each).rpartition(".")[2] in _COMMANDS for each in function.decorator_list)
