"""Resolve what a path in a program's source begins with: through variables, parameters, attributes and calls that join paths.

The source is never run. A variable is known if each of its bindings is; an attribute or a key, if each one of its name is.
"""

import ast
import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
_HERE = {"os.getcwd", "Path.cwd", "pathlib.Path.cwd"}
_JOINS = {"os.path.join", "path.join", "osp.join", "Path", "pathlib.Path", "PurePath"}
_SAME = {"str", "abspath", "realpath", "expanduser", "normpath", "fspath"}
"""Functions whose value begins as their argument does."""
_METHODS = {"joinpath", "with_suffix", "with_name", "resolve", "absolute", "expanduser", "as_posix", "rstrip", "strip", "replace"}
"""Methods whose value begins as their object does."""
_EXAMINED = {"open", "BytesIO", "StringIO", "mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "SpooledTemporaryFile"}
"""Calls whose value is no path of the user: a file that is examined where it is opened, memory, or a temporary folder."""
_TABLES = {"dict", "Namespace", "SimpleNamespace", "EasyDict", "edict"}
"""Calls whose keywords are keys."""
_MOST_STEPS = 20_000
"""Most expressions that are followed in a source."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Describes what the path of an expression may begin with."""

    texts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Names of options whose values it begins with; empty names stand for what writes nothing of the user's."""
    unseen: tuple[str, ...] = ()
    """Names of what only a run knows."""
    members: tuple[str, ...] = ()
    """Attributes and keys through which its texts are known."""

    def __or__(self, other: "Beginning") -> "Beginning":
        """Return what either of two expressions begins with."""
        return Beginning(
            texts=(*self.texts, *other.texts),
            options=(*self.options, *other.options),
            unseen=(*self.unseen, *other.unseen),
            members=(*self.members, *other.members),
        )


class _Scope:
    """Holds the names that a module, a class or a function binds."""

    def __init__(self, node: ast.AST, above: "_Scope | None") -> None:
        self.node, self.above = node, above
        self.bound: dict[str, list[ast.expr | ast.arg | None]] = {}
        self.globals: set[str] = set()


class SourceNames:
    """Resolves the expressions of one source.

    Args:
        tree: The source.
        options: Names of attributes and keys that are options of the program.
        parsed: Functions and classes whose parameters and fields are options.
        variables: Global variables that are options.
    """

    def __init__(
        self, tree: ast.Module, options: Collection[str] = (), parsed: Collection[str] = (), variables: Collection[str] = ()
    ) -> None:
        self._options, self._parsed, self._variables = options, parsed, variables
        self._scope_of: dict[int, _Scope] = {}
        self._members: dict[str, list[ast.expr | None]] = {}
        self._functions: dict[str, list[Function]] = {}
        self._calls: dict[str, list[ast.Call]] = {}
        self._modules: set[str] = set()
        self._left = _MOST_STEPS
        self._enter(tree, _Scope(tree, None))

    def beginning(self, node: ast.expr | None) -> Beginning:
        """Return what the path of an expression begins with."""
        return self._of(node, frozenset())

    def defines(self, call: ast.Call) -> bool:
        """Return whether a call is that of a function of the source, or of a method of the same object."""
        base, _, stem = dotted(call).rpartition(".")
        return base in ("", "self", "cls") and stem in self._functions

    def _enter(self, tree: ast.Module, module: _Scope) -> None:
        """Note the scope of each node, and what each scope binds."""
        waiting: list[tuple[ast.AST, _Scope]] = [(tree, module)]
        nodes: list[ast.AST] = []
        while waiting:
            node, scope = waiting.pop()
            self._scope_of[id(node)] = scope
            nodes.append(node)
            if isinstance(node, ast.Global):
                scope.globals |= set(node.names)
            inner = _Scope(node, scope) if isinstance(node, Function | ast.ClassDef | ast.Lambda) else scope
            waiting += reversed([(each, inner) for each in ast.iter_child_nodes(node)])
        for node in nodes:
            self._note(node, self._scope_of[id(node)], module)

    def _note(self, node: ast.AST, scope: _Scope, module: _Scope) -> None:
        """Note what a node binds, declares or calls."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value, scope, module)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                if value is not None:
                    self._bind(target, value, scope, module)
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                self._bind(target, None, scope, module)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._bind(target, value, scope, module)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                self._modules |= {(each.asname or each.name).partition(".")[0] for each in names}
            case ast.arg(arg=name):
                scope.bound.setdefault(name, []).append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._functions.setdefault(node.name, []).append(node)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        self._members.setdefault(key.value, []).append(value)
            case ast.Call(keywords=keywords):
                stem = dotted(node).rpartition(".")[2]
                self._calls.setdefault(stem, []).append(node)
                for each in keywords if stem in _TABLES else ():
                    self._members.setdefault(str(each.arg), []).append(each.value)

    def _bind(self, target: ast.expr, value: ast.expr | None, scope: _Scope, module: _Scope) -> None:
        """Note the value of a target: a name, an attribute, a key, or several of them."""
        match target:
            case ast.Name(id=name):
                owner = module if name in scope.globals else scope
                owner.bound.setdefault(name, []).append(value)
                if isinstance(scope.node, ast.ClassDef) and scope.node.name not in self._parsed:
                    self._members.setdefault(name, []).append(value)
            case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
                self._members.setdefault(name, []).append(value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(targets)
                values = value.elts if same and isinstance(value, ast.Tuple | ast.List) else [None] * len(targets)
                for each, its in zip(targets, values, strict=True):
                    self._bind(each, its, scope, module)

    def _of(self, node: ast.expr | None, within: frozenset[Any]) -> Beginning:
        """Return what an expression begins with; names that are followed already add nothing."""
        self._left -= 1
        if self._left < 0:
            return Beginning(unseen=("",))
        match node:
            case ast.Constant(value=value):
                return Beginning(texts=(value,)) if isinstance(value, str) else Beginning()
            case ast.Name(id=name):
                return self._of_name(name, node, within)
            case ast.Attribute(attr=name):
                return self._of_attribute(node, name, within)
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                return self._of_member(name, within)
            case ast.JoinedStr(values=[ast.FormattedValue(value=first), *_]) | ast.JoinedStr(values=[first, *_]):
                return self._of(first, within)
            case ast.NamedExpr(value=first) | ast.Subscript(value=first):
                return self._of(first, within)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._joined([left, right], within)
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return self._formatted(left, right.elts if isinstance(right, ast.Tuple) else [right], within)
            case ast.BinOp(left=left, op=ast.Add()):
                return self._of(left, within)
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(op=ast.Or(), values=[first, second]):
                return self._of(first, within) | self._of(second, within)
            case ast.Call():
                return self._of_call(node, within)
        return Beginning(unseen=("",))

    def _of_name(self, name: str, node: ast.AST, within: frozenset[Any]) -> Beginning:
        """Return what a variable begins with; one that has a binding of which only a run knows has no text."""
        if name == "__file__":
            return Beginning(texts=(".",))
        scope: _Scope | None = self._scope_of.get(id(node))
        first = scope
        while scope is not None and (name not in scope.bound or (scope is not first and isinstance(scope.node, ast.ClassDef))):
            scope = scope.above
        if scope is None:
            return Beginning(unseen=(name,))
        if scope.above is None and name in self._variables:
            return Beginning(options=(name,))
        return self._of_all(scope.bound[name], (id(scope), name), name, within)

    def _of_all(self, values: Sequence[ast.expr | ast.arg | None], key: Any, name: str, within: frozenset[Any]) -> Beginning:
        """Return what any of several bindings begins with."""
        if key in within:
            return Beginning()
        found, within = Beginning(), within | {key}
        for value in values:
            if value is None:
                found |= Beginning(unseen=(name,))
            else:
                found |= self._of_parameter(value, within) if isinstance(value, ast.arg) else self._of(value, within)
        is_sure = not found.unseen or any(isinstance(each, ast.arg) for each in values)
        found = found if is_sure else dataclasses.replace(found, texts=())
        return found if found != Beginning() else Beginning(unseen=(name,))

    def _of_attribute(self, node: ast.Attribute, name: str, within: frozenset[Any]) -> Beginning:
        """Return what an attribute begins with."""
        if dotted(node) in ("sys.argv", "os.devnull"):
            return Beginning(options=("",))
        return _parent(self._of(node.value, within)) if name == "parent" else self._of_member(name, within)

    def _of_member(self, name: str, within: frozenset[Any]) -> Beginning:
        """Return what an attribute or a key of some name begins with."""
        option = Beginning(options=(name,)) if name in self._options else Beginning()
        if name not in self._members:
            return option if name in self._options else Beginning(unseen=(name,))
        found = self._of_all(self._members[name], name, name, within) | Beginning(members=(name,))
        return option | dataclasses.replace(found, unseen=()) if name in self._options else found

    def _of_parameter(self, parameter: ast.arg, within: frozenset[Any]) -> Beginning:
        """Return what a parameter begins with: in calls of its function in the source, or else by its default."""
        scope = self._scope_of[id(parameter)]
        function = scope.node
        if not isinstance(function, Function):
            return Beginning(unseen=(parameter.arg,))
        if function.name in self._parsed:
            return Beginning(options=(parameter.arg,))
        given = [_given(call, parameter, function, in_class=_is_method(scope)) for call in self._calls_of(scope)] or [
            _default(function, parameter)
        ]
        found = Beginning()
        for value in given:
            found |= Beginning(unseen=(parameter.arg,)) if value is None else self._of(value, within)
        return found

    def _calls_of(self, scope: _Scope) -> Iterator[ast.Call]:
        """Yield the calls of a function or a method, and those of its class if it is the one that makes an object."""
        function, above = scope.node, scope.above
        if not isinstance(function, Function):
            return
        is_init = function.name == "__init__" and above is not None and isinstance(above.node, ast.ClassDef)
        name = above.node.name if is_init and above is not None and isinstance(above.node, ast.ClassDef) else function.name
        for call in self._calls.get(name, ()):
            is_dotted = isinstance(call.func, ast.Attribute)
            if is_init or (is_dotted == _is_method(scope) and dotted(call).partition(".")[0] not in self._modules - {name}):
                yield call

    def _of_call(self, call: ast.Call, within: frozenset[Any]) -> Beginning:
        """Return what the value of a call begins with."""
        name = dotted(call)
        stem, arguments = name.rpartition(".")[2], call.args
        default = next((each.value for each in call.keywords if each.arg == "default"), None)
        if name in ("os.environ.get", "os.getenv") or stem == "field":
            return self._of(arguments[1] if len(arguments) > 1 else default, within)
        if name in _HERE:
            return Beginning(texts=(".",))
        if stem in _EXAMINED:
            return Beginning(options=("",))
        if name in _JOINS or stem in _SAME or stem == "dirname":
            found = self._joined(arguments, within) if arguments else Beginning(texts=(".",))
            return _parent(found) if stem == "dirname" else found
        if isinstance(call.func, ast.Attribute) and stem == "format":
            return self._formatted(call.func.value, [*arguments, *(each.value for each in call.keywords)], within)
        if isinstance(call.func, ast.Attribute) and stem in _METHODS:
            return self._joined([call.func.value, *(arguments if stem == "joinpath" else ())], within)
        returned = [each.value for known in self._functions.get(stem, ()) for each in ast.walk(known) if isinstance(each, ast.Return)]
        return self._of_all(returned, ("return", stem), stem, within) if returned else Beginning(unseen=(stem,))

    def _formatted(self, template: ast.expr, values: Sequence[ast.expr], within: frozenset[Any]) -> Beginning:
        """Return what a template with values begins with: its text, or else the first value."""
        found = self._of(template, within)
        texts = tuple(filter(None, (re.split(r"[%{]", text)[0] for text in found.texts)))
        return dataclasses.replace(found, texts=texts) if texts or not (found.texts and values) else self._of(values[0], within)

    def _joined(self, parts: Sequence[ast.expr], within: frozenset[Any]) -> Beginning:
        """Return what joined parts begin with; the working folder is left out in front of a text."""
        found = self._of(parts[0], within)
        if len(parts) > 1 and found.texts == (".",):
            return self._joined(parts[1:], within) if self._of(parts[1], within).texts else found
        return found


def dotted(node: Any) -> str:
    """Return the dotted name of an expression, or of what a call calls; empty if it is none."""
    inner = node.func if isinstance(node, ast.Call) else node
    parts: list[str] = []
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    return ".".join([inner.id, *reversed(parts)]) if isinstance(inner, ast.Name) else ".".join(reversed(parts))


def _parent(found: Beginning) -> Beginning:
    """Return the folders of paths."""
    return dataclasses.replace(found, texts=tuple(str(PurePath(text).parent) for text in found.texts))


def _is_method(scope: _Scope) -> bool:
    """Return whether the scope of a function lies in a class."""
    return scope.above is not None and isinstance(scope.above.node, ast.ClassDef)


def _given(call: ast.Call, parameter: ast.arg, function: Function, *, in_class: bool) -> ast.expr | None:
    """Return the value of a parameter in a call; None if only a run knows it."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return None
    named = next((each.value for each in call.keywords if each.arg == parameter.arg), None)
    names = [*function.args.posonlyargs, *function.args.args]
    index = names.index(parameter) - in_class if parameter in names else len(call.args)
    return named or (call.args[index] if 0 <= index < len(call.args) else _default(function, parameter))


def _default(function: Function, parameter: ast.arg) -> ast.expr | None:
    """Return the default of a parameter; None if it has none."""
    return dict(defaults_of(function)).get(parameter)


def defaults_of(function: Function) -> Iterator[tuple[ast.arg, ast.expr]]:
    """Yield the parameters of a function that have a default."""
    own = function.args
    yield from zip(reversed([*own.posonlyargs, *own.args]), reversed(own.defaults), strict=False)
    yield from ((each, value) for each, value in zip(own.kwonlyargs, own.kw_defaults, strict=True) if value is not None)
