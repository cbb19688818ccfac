"""Find the options that a program's source declares, with the texts that are their defaults."""

import ast
import dataclasses
from collections.abc import Collection, Iterator, Mapping

from oppa.problem.source_names import Function, SourceNames, defaults_of, dotted

_PARSERS = {"add_argument", "option", "Option"}
"""Calls that declare an option: those of argparse, click and typer."""
_COMMANDS = {"command", "option", "argument", "callback"}
"""Decorators of click and typer, whose functions have options as parameters."""
_OF_SIGNATURE = {
    "run": "-",
    "cli": "-",
    "Fire": "_",
    "CLI": "_",
    "HfArgumentParser": "_",
    "TrlParser": "_",
    "add_arguments": "_",
    "parse": "_",
}
"""Calls that make options of a function's parameters or a class's fields; the value is what stands for `_` in an option's name."""
_DEEPEST = 3
"""Most tables around a field whose options are found."""
_Signature = Function | ast.ClassDef


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


def program_options(tree: ast.Module, words: Collection[str] = ()) -> ProgramOptions:
    """Return the options that a source declares.

    Args:
        words: Words of the launch line, which name one of several commands.
    """
    known = {node.name: node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef)}
    signatures, names = [*_signatures(tree, known, words)], SourceNames(tree)
    own = (_of_function(node, mark) if isinstance(node, Function) else _of_class(node, mark, known) for node, mark in signatures)
    declared = [*_of_calls(tree), *(each for found in own for each in found)]
    found = [(each, "" if each.default is None else _text_of(each.default, names)) for each in declared]
    commands = {name for name, node in known.items() if isinstance(node, Function) and _is_command(node)}
    return ProgramOptions(
        spelled={each.attribute: each.names[0] for each in declared},
        defaults=tuple(OptionDefault(names=each.names, value=text) for each, text in found if text),
        parsed=frozenset({*commands, *(node.name for node, _ in signatures)}),
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


def _signatures(tree: ast.Module, known: Mapping[str, _Signature], words: Collection[str]) -> Iterator[tuple[_Signature, str]]:
    """Yield the functions and classes of which a parser makes options, each with what stands for `_` in their names."""
    commands = [node for node in known.values() if isinstance(node, Function) and _decorators(node) & _COMMANDS == {"command"}]
    yield from ((node, "-") for node in commands if len(commands) == 1 or {node.name, node.name.replace("_", "-")} & {*words})
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        mark = _OF_SIGNATURE.get(dotted(call)) or _OF_SIGNATURE.get(dotted(call).rpartition(".")[2], "")
        named = [each for argument in call.args for each in (argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument])]
        yield from ((known[each.id], mark) for each in named if mark and isinstance(each, ast.Name) and each.id in known)


def _of_function(function: Function, mark: str) -> Iterator[_Declared]:
    """Yield the parameters of a function that have a default, which `typer.Option` may hold."""
    for parameter, value in defaults_of(function):
        is_call = isinstance(value, ast.Call) and dotted(value).rpartition(".")[2] == "Option"
        default = next(iter(value.args), None) if isinstance(value, ast.Call) and is_call else value
        inside = [each.value for part in (parameter, value) for each in ast.walk(part) if isinstance(each, ast.Constant)]
        names = [text for text in inside if isinstance(text, str) and text.startswith("--")]
        yield _Declared(names=(*names, f"--{parameter.arg.replace('_', mark)}")[:1], attribute=parameter.arg, default=default)


def _of_class(node: ast.ClassDef, mark: str, known: Mapping[str, _Signature], above: tuple[str, ...] = ()) -> Iterator[_Declared]:
    """Yield the fields of a class and of those that it extends; a field that is a class has fields of its own."""
    for base in (known.get(dotted(each)) for each in node.bases):
        if isinstance(base, ast.ClassDef) and base.lineno < node.lineno:
            yield from _of_class(base, mark, known, above)
    for field in (each for each in node.body if isinstance(each, ast.AnnAssign)):
        name = dotted(field.target)
        inner = known.get(dotted(field.annotation))
        if isinstance(inner, ast.ClassDef) and len(above) < _DEEPEST:
            yield from _of_class(inner, mark, known, (*above, name))
        elif name:
            yield _Declared(names=(f"--{'.'.join((*above, name)).replace('_', mark)}",), attribute=name, default=field.value)


def _text_of(default: ast.expr, names: SourceNames) -> str:
    """Return the text of a default; empty for a number, a switch, None, or the folder of the program."""
    text = next(iter(names.beginning(default).texts), "")
    return "" if text == "." and not isinstance(default, ast.Constant) else text


def _is_command(function: Function) -> bool:
    """Return whether a decorator makes the parameters of a function options."""
    return bool(_decorators(function) & _COMMANDS)


def _decorators(function: Function) -> set[str]:
    """Return the names of the decorators of a function, without their modules."""
    return {dotted(each).rpartition(".")[2] for each in function.decorator_list}
