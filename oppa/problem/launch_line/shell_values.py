"""Hold a script's variables, and expand its words: `$A`, `${A:-default}`, `$((8 * 1))`, `"${ARGS[@]}"`, `"$@"`.

Nothing is run. What no assignment and no variable of the environment states stays in the word as the script has it, marked as missing.
"""

import dataclasses
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import whole_number
from oppa.problem.bounds import DEEPEST, MOST_EXPANDED
from oppa.problem.launch_line.shell_arithmetic import compute
from oppa.problem.launch_line.shell_parser import parse_script
from oppa.problem.launch_line.shell_syntax import Assigned, Expansion, LiteralText, Parts, Simple
from oppa.problem.launch_line.words import ENVIRONMENT, LINE, Word, WordPiece
from oppa.redaction import is_secret

_PARAMETER = re.compile(
    r"(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!])(?P<index>\[[^\]]*\])?(?:(?P<how>:?[-=+?]|##?|%%?|//?)(?P<rest>.*))?", re.DOTALL
)
_SET_LATER = re.compile(
    r"(SLURM|SLURMD|SRUN|PMI|PMIX|PBS|LSB|OMPI|MPI|FLUX|PALS|KUBERNETES|VC|PET|CUDA)_\w+|(LOCAL_|NODE_|GROUP_)?RANK|HOSTNAME|RANDOM"
    r"|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NNODES|NODELIST|PIPESTATUS|SECONDS|EPOCHREALTIME"
)
"""Variables that a scheduler, a launcher or the shell sets, so that one without a value here may have one there."""
_BLANKS = re.compile(r"([ \t\n]+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Fragment:
    """A piece of an expanded word; `splits` if blanks in it separate words."""

    piece: WordPiece
    splits: bool = False


class Variables:
    """Holds the variables of one shell, and expands words."""

    def __init__(self, *, source: str, arguments: Sequence[Word], environment: Mapping[str, str], script: Word) -> None:
        self.source, self.arguments, self.script = source, tuple(arguments), script
        self.exported: dict[str, Word] = {}
        self._environment = environment
        self._set: dict[str, tuple[Word, ...]] = {}
        self._unknown: dict[str, str] = {}
        self._expanded = 0

    def assign(self, assigned: Assigned, *, exports: bool = False) -> None:
        """Set a variable to a word, or to the words of an array; `+=` adds to it."""
        if assigned.array is not None:
            value = tuple(word for parts in assigned.array for word in self.fields(parts))
            self._set[assigned.name] = (*self._set.get(assigned.name, ()), *value) if assigned.adds else value
        else:
            value = (self.single(assigned.value),)
            if assigned.adds:
                before = self._set.get(assigned.name, ())
                joined = Word(pieces=(*(piece for each in before for piece in each.pieces), *value[0].pieces))
                value = (joined,)
            self._set[assigned.name] = value
        self._unknown.pop(assigned.name, None)
        if exports or assigned.name in self.exported:
            self.export(assigned.name)

    def set(self, name: str, value: Word) -> None:
        """Set a variable to a word."""
        self._set[name] = (value,)

    def export(self, name: str) -> None:
        """Export a variable that is set."""
        if value := self._set.get(name):
            self.exported[name] = value[0]

    def forget(self, names: Iterable[str], why: str) -> None:
        """Mark variables as unknown, because a command that is not run may set them."""
        for name in names:
            self._set.pop(name, None)
            self.exported.pop(name, None)
            self._unknown[name] = why

    def is_unknown(self, name: str) -> bool:
        """Return whether a command that is not run may have set the variable."""
        return name in self._unknown

    def fields(self, parts: Parts) -> list[Word]:
        """Return the words that a word of the script becomes: none, one or several."""
        if (whole := self._array_alone(parts)) is not None:
            return list(whole)
        return _split(self._fragments(parts), keeps_empty=any(part.quoted for part in parts))

    def single(self, parts: Parts) -> Word:
        """Return a word that is not split, as an assignment has it."""
        return Word(pieces=tuple(each.piece for each in self._fragments(parts)))

    def _array_alone(self, parts: Parts) -> tuple[Word, ...] | None:
        """Return the words of `"${ARGS[@]}"` or `"$@"`, if a word is nothing else."""
        alone = [part for part in parts if not (isinstance(part, LiteralText) and not part.text)]
        if len(alone) != 1 or not isinstance(part := alone[0], Expansion) or part.kind != "variable":
            return None
        match = _PARAMETER.fullmatch(part.body)
        if match is None or match["how"]:
            return None
        found = None
        if match["name"] in "@*" and not match["index"]:
            found = self.arguments
        elif match["index"] in ("[@]", "[*]") and match["name"] in self._set:
            found = self._set[match["name"]]
        for each in found or ():
            self._count(len(each.text) + 1)
        if found is None or part.quoted:
            return found
        inner = ([_Fragment(piece=piece, splits=not piece.missing) for piece in each.pieces] for each in found)
        return tuple(word for fragments in inner for word in _split(fragments, keeps_empty=False))

    def _fragments(self, parts: Parts, depth: int = 0) -> list[_Fragment]:
        if depth > DEEPEST:
            raise InputError(f"`{clipped(self.source)}` has expansions nested more than {DEEPEST} deep", hint="give the launch line itself")
        found: list[_Fragment] = []
        for part in parts:
            if isinstance(part, LiteralText):
                found.append(_Fragment(piece=WordPiece(text=part.text, origin=f"{self.source}:{part.line}")))
            else:
                found += self._expanded_part(part, depth)
        return found

    def _expanded_part(self, part: Expansion, depth: int) -> list[_Fragment]:
        pieces = self._pieces(part, depth)
        self._count(sum(len(piece.text) for piece in pieces))
        return [_Fragment(piece=piece, splits=not part.quoted and not piece.missing) for piece in pieces]

    def _count(self, characters: int) -> None:
        """Raise InputError if all expansions together become too long."""
        self._expanded += characters
        if self._expanded > MOST_EXPANDED:
            message = f"the variables of `{clipped(self.source)}` expand to more than {MOST_EXPANDED} characters"
            raise InputError(message, hint="give the launch line that it starts")

    def _pieces(self, part: Expansion, depth: int) -> list[WordPiece]:
        missing = [WordPiece(text=part.source, origin=f"{self.source}:{part.line}", missing=True)]
        if part.kind == "arithmetic":
            return self._arithmetic(part, depth) or missing
        if part.kind == "command":
            return self._directory(part) or missing
        match = _PARAMETER.fullmatch(part.body)
        if match is None:
            return missing
        name, index, how, rest = match["name"], match["index"], match["how"] or "", match["rest"] or ""
        value = self._value(name, index or "")
        if how.startswith(("#", "%", "/")):
            return _trimmed(value, how, rest) or missing
        stated = value is not None and (bool("".join(piece.text for piece in value)) or not how.startswith(":"))
        if how.endswith("+"):
            return self._text(rest, part, depth) if stated else []
        if stated:
            assert value is not None
            return value
        if how.endswith(("-", "=")) and not self.is_unknown(name):
            found = self._text(rest, part, depth)
            if how.endswith("="):
                self._set[name] = (Word(pieces=tuple(found)),)
            return found
        return missing

    def _text(self, rest: str, part: Expansion, depth: int) -> list[WordPiece]:
        """Return the pieces of a text inside an expansion, such as a default."""
        commands = parse_script(f": {rest}", source=self.source) if rest.strip() else ()
        words = commands[0].words[1:] if commands and isinstance(commands[0], Simple) else ()
        found: list[WordPiece] = []
        for number, each in enumerate(words):
            blank = [WordPiece(text=" ", origin=f"{self.source}:{part.line}")] if number else []
            moved = tuple(dataclasses.replace(inner, line=part.line) for inner in each)
            found += [*blank, *(fragment.piece for fragment in self._fragments(moved, depth + 1))]
        return found

    def _value(self, name: str, index: str) -> list[WordPiece] | None:
        """Return the value of a variable; None if nothing states it.

        A secret of the environment counts as not stated, so that no file has it; trials inherit it.
        """
        if name in self._unknown:
            return None
        if name == "0":
            return list(self.script.pieces)
        if name == "#":
            return [WordPiece(text=str(len(self.arguments)), origin=LINE)]
        if name in "@*":
            return _with_blanks(self.arguments)
        if (position := whole_number(name)) is not None:
            return list(self.arguments[position - 1].pieces) if 0 < position <= len(self.arguments) else []
        if name in self._set:
            words = self._set[name]
            if index in ("[@]", "[*]"):
                return _with_blanks(words)
            at = whole_number(index.strip("[]")) if index else 0
            return list(words[at].pieces) if at is not None and at < len(words) else []
        if name in self._environment and not index and not is_secret(name, self._environment[name]):
            return [WordPiece(text=self._environment[name], origin=f"{ENVIRONMENT} {name}")]
        return None

    def _arithmetic(self, part: Expansion, depth: int) -> list[WordPiece]:
        """Return the value of an arithmetic expression; nothing if it cannot be computed."""
        commands = parse_script(f': "{part.body.replace(chr(34), "")}"', source=self.source)
        words = commands[0].words if commands and isinstance(commands[0], Simple) else ()
        pieces = [each.piece for each in self._fragments(words[1], depth + 1)] if len(words) > 1 else []
        text = re.sub(r"[A-Za-z_]\w*", lambda found: self._number(found[0]), "".join(piece.text for piece in pieces))
        if any(piece.missing for piece in pieces) or (number := compute(text)) is None:
            return []
        return [WordPiece(text=str(number), origin=f"{self.source}:{part.line}")]

    def _number(self, name: str) -> str:
        value = self._value(name, "")
        return "".join(piece.text for piece in value) if value is not None and not any(piece.missing for piece in value) else "?"

    def _directory(self, part: Expansion) -> list[WordPiece]:
        """Return the folder of the script, for the usual ways to ask for it; nothing for any other command."""
        origin = f"{self.source}:{part.line}"
        if re.fullmatch(r"\s*pwd\s*", part.body):
            return [WordPiece(text=str(Path.cwd()), origin=origin)]
        asks = r'.*dirname\s+(?:--\s+)?"?\$(?:\{BASH_SOURCE\[0\]\}|BASH_SOURCE|0|\{0\}|\{BASH_SOURCE\})"?.*'
        if re.fullmatch(asks, part.body, re.DOTALL) and not any(piece.missing for piece in self.script.pieces):
            return [WordPiece(text=str(Path(self.script.text).absolute().parent), origin=origin)]
        return []


def _trimmed(value: list[WordPiece] | None, how: str, rest: str) -> list[WordPiece]:
    """Return a value without a prefix or a suffix such as `.*`; nothing for other patterns."""
    if value is None or len(value) != 1 or value[0].missing:
        return []
    text = value[0].text
    match how, rest:
        case "##", "*/":
            text = text.rpartition("/")[2]
        case "%", "/*":
            text = text.rpartition("/")[0]
        case (("#" | "##"), _) if not re.search(r"[*?\[$]", rest):
            text = text.removeprefix(rest)
        case (("%" | "%%"), _) if not re.search(r"[*?\[$]", rest):
            text = text.removesuffix(rest)
        case _:
            return []
    return [dataclasses.replace(value[0], text=text)]


def _with_blanks(words: Sequence[Word]) -> list[WordPiece]:
    found: list[WordPiece] = []
    for number, each in enumerate(words):
        found += [WordPiece(text=" ", origin=each.origin)] if number else []
        found += each.pieces
    return found


def _split(fragments: Sequence[_Fragment], *, keeps_empty: bool) -> list[Word]:
    """Return the words of an expanded word, which is split at the blanks of unquoted variables."""
    words: list[list[WordPiece]] = [[]]
    for each in fragments:
        pieces = _BLANKS.split(each.piece.text) if each.splits else [each.piece.text]
        for number, text in enumerate(pieces):
            if number % 2:
                words.append([])
            elif text:
                words[-1].append(dataclasses.replace(each.piece, text=text))
    found = [Word(pieces=tuple(pieces)) for pieces in words if pieces]
    return found or ([Word(pieces=())] if keeps_empty else [])


def condition_holds(words: Sequence[Word]) -> bool | None:
    """Return whether a test such as `[ -n "$A" ]` holds; None if that depends on something unknown.

    A variable that is set nowhere is empty, as in the shell, unless a scheduler may set it.
    """
    given = ["".join(_tested(piece) or "" for piece in each.pieces) for each in words]
    if not given or any(_tested(piece) is None for each in words for piece in each.pieces):
        return None
    if given[0] in ("[", "[["):
        given = given[1:-1] if given[-1] in ("]", "]]") else given[1:]
    elif given[0] == "test":
        given = given[1:]
    elif len(given) == 1:
        return {"true": True, ":": True, "false": False}.get(given[0])
    else:
        return None
    negated = given[:1] == ["!"]
    found = _holds(given[1:] if negated else given)
    return found if found is None else found != negated


def _tested(piece: WordPiece) -> str | None:
    """Return the text of a piece in a test; None if it is unknown."""
    if not piece.missing:
        return piece.text
    named = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", piece.text)
    return "" if named and not _SET_LATER.fullmatch(named[1]) else None


def _holds(test: Sequence[str]) -> bool | None:
    match list(test):
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case ["-f", path]:
            return Path(path).is_file() or None  # a file that is not here may be on the cluster
        case ["-d", path]:
            return Path(path).is_dir() or None
        case ["-e", path]:
            return Path(path).exists() or None
        case [left, ("=" | "=="), right]:
            return left == right if not re.search(r"[*?\[]", right) else None
        case [left, "!=", right]:
            return left != right if not re.search(r"[*?\[]", right) else None
        case [left, ("-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge") as how, right]:
            first, second = whole_number(left), whole_number(right)
            if first is None or second is None:
                return None
            return bool(_COMPARED[how](first, second))
        case _:
            return None


def matches_pattern(text: str, patterns: Iterable[str]) -> bool | None:
    """Return whether a text matches one of the patterns of a `case`; None if a pattern is more than text, `*`, or a prefix with `*`."""
    for pattern in patterns:
        if (
            pattern == "*"
            or pattern == text
            or (pattern.endswith("*") and text.startswith(pattern[:-1]) and not re.search(r"[*?\[]", pattern[:-1]))
        ):
            return True
        if re.search(r"[*?\[]", pattern.removesuffix("*")):
            return None
    return False


_COMPARED = {"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge}
