"""Hold a script's variables, and expand its words: `$A`, `${A:-default}`, `$((8 * 1))`, `"${ARGS[@]}"`, `"$@"`.

Nothing is run. What no assignment and no variable of the environment states stays in the word as the script has it, marked as missing.
"""

import copy
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import whole_number
from oppa.problem.bounds import DEEPEST, MOST_EXPANDED
from oppa.problem.launch_line.shell_arithmetic import compute
from oppa.problem.launch_line.shell_conditions import SET_LATER
from oppa.problem.launch_line.shell_expansions import at_index, trimmed, with_braces, with_files, without_home
from oppa.problem.launch_line.shell_outputs import COMPUTES, computed, counts_gpus, counts_visible_gpus, printed_date
from oppa.problem.launch_line.shell_parser import parse_script
from oppa.problem.launch_line.shell_syntax import GIVE_LINE, Assigned, Command, Expansion, LiteralText, Parts, Simple, every_command
from oppa.problem.launch_line.words import ENVIRONMENT, LINE, Word, WordPiece, texts
from oppa.redaction import is_secret

_PARAMETER = re.compile(
    r"(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!])(?P<index>\[[^\]]*\])?(?:(?P<how>:?[-=+?]|##?|%%?|//?)(?P<rest>.*))?", re.DOTALL
)
_SHELLS_OWN = re.compile(
    r"BASH\w*|OPT(ARG|IND)|RANDOM|SECONDS|EPOCH\w+|LINENO|PPID|E?UID|HOSTNAME|PIPESTATUS|REPLY|OLDPWD|DIRSTACK|[?!$#*@-]"
)
"""Variables that the shell sets, so that a default does not stand for them."""
_LASTING = frozenset(["HOME", "USER", "LOGNAME", "PATH", "SHELL"])
"""Variables of the environment that files with settings leave as they are."""
_SETS = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9]*")
_LISTED = re.compile(r"^[: ]|[: ]$")
_BLANKS = re.compile(r"([ \t\n]+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Fragment:
    """Holds a piece of an expanded word; `splits` if blanks in it separate words."""

    piece: WordPiece
    splits: bool = False


class Variables:
    """Holds the variables of one shell, and expands words."""

    def __init__(
        self,
        *,
        source: str,
        arguments: Sequence[Word],
        environment: Mapping[str, str],
        script: Word,
        unknown: Mapping[str, Word] | None = None,
        gpus: int | None = None,
    ) -> None:
        self.source, self.arguments, self.script, self._gpus = source, tuple(arguments), script, gpus
        self.exported: dict[str, Word] = {}
        self._environment = environment
        self._set: dict[str, tuple[Word, ...]] = {name: (value,) for name, value in (unknown or {}).items()}
        self._assigned: set[str] = set()
        self._unknown: dict[str, str] = {}
        self._kept_unknown: set[str] = set()
        self._all_unknown = self.arguments_unknown = self.exports_all = False
        self._expanded = 0

    def assign(self, assigned: Assigned, *, exports: bool = False) -> None:
        """Set a variable to a word, or to the words of an array; `+=` adds to it."""
        name = assigned.name
        if name in self._kept_unknown or (assigned.adds and self.is_unknown(name)) or _has_subscripts(assigned):
            self.forget([name])
            return
        before = self._set.get(name, ())
        if assigned.array is not None:
            value = tuple(word for parts in assigned.array for word in self.fields(parts))
            self._set[name] = (*before, *value) if assigned.adds else value
        else:
            added = self._extended(name, self.single(assigned.value))
            first = self._value(name, "") or [] if assigned.adds else []
            self._set[name] = (Word(pieces=(*first, *added.pieces)), *(before[1:] if len(before) > 1 else ()))
        self._unknown.pop(name, None)
        if exports or self.exports_all or name in self.exported:
            self.export(name)

    def _extended(self, name: str, value: Word) -> Word:
        """Return the value of a list that extends itself, as in `A=/b:$A`: a variable that is set nowhere is empty in it."""
        own = (f"${name}", f"${{{name}}}")
        if self.is_unknown(name) or SET_LATER.fullmatch(name) or name in self._environment:
            return value
        around = [piece.text for piece in value.pieces if piece.text not in own]
        if not any(_LISTED.search(text) for text in around):
            return value
        return Word(pieces=tuple(piece for piece in value.pieces if not (piece.missing and piece.text in own)))

    def declare(self, commands: Sequence[Command]) -> None:
        """Note which variables the commands of a script assign anywhere."""
        for each in every_command(commands):
            self._assigned |= {assigned.name for assigned in each.assignments} if isinstance(each, Simple) else set()

    def in_front(self, assignments: Iterable[Assigned]) -> dict[str, Word]:
        """Set variables as in front of a command, each with those before it, and return them."""
        for each in assignments:
            self.put(each.name, self.single(each.value))
        return {each.name: self._set[each.name][0] for each in assignments}

    def put(self, name: str, value: Word) -> None:
        """Set a variable to a word."""
        self._set[name] = (value,)

    def export(self, name: str) -> None:
        """Export a variable that is set."""
        if value := self._set.get(name):
            self.exported[name] = value[0]

    def forget(self, names: Iterable[str], *, lasting: bool = False) -> None:
        """Mark variables as unknown, because a command that is not followed may set them; `lasting`: later values are unknown, too."""
        for name in names:
            self._set.pop(name, None)
            if name in self.exported:
                self.exported[name] = self._missing(f"${name}")
            self._unknown[name] = ""
            if lasting:
                self._kept_unknown.add(name)

    def forget_all(self) -> None:
        """Mark all variables as unknown, because a file that is not read may set them."""
        self.forget([*self._set, *self.exported])
        self._all_unknown = True

    def forget_arguments(self) -> None:
        """Mark the script's arguments as unknown."""
        self.arguments, self.arguments_unknown = (self._missing("$@"),), True

    def _missing(self, text: str) -> Word:
        return Word(pieces=(WordPiece(text=text, origin=self.source, missing=True),))

    def is_unknown(self, name: str) -> bool:
        """Return whether a command that is not followed may have set the variable."""
        if name in "@*#" or (whole_number(name) is not None and name != "0"):
            return self.arguments_unknown
        return name in self._unknown or (self._all_unknown and name not in self._set and name not in _LASTING)

    def copy(self) -> Self:
        """Return variables that change apart from these, as those of a subshell do."""
        made = copy.copy(self)
        made.exported, made._set, made._unknown = dict(self.exported), dict(self._set), dict(self._unknown)
        made._kept_unknown = set(self._kept_unknown)
        return made

    def changed_by(self, parts: Parts) -> set[str]:
        """Return the variables that the expansion of a word sets, as `${A:=1}` and `$((A++))` do."""
        expansions = [part for part in parts if isinstance(part, Expansion)]
        found = {match[1] for part in expansions if part.kind == "variable" and (match := re.match(r"([A-Za-z_]\w*):?=", part.body))}
        return found | {name for part in expansions for name in (set_by_arithmetic(part.body) if part.kind == "arithmetic" else ())}

    def counts_also(self, other: Self) -> None:
        """Count what a subshell's variables expanded to."""
        self._expanded = max(self._expanded, other._expanded)

    def may_be_stated(self, each: Word) -> bool:
        """Return whether something that is missing in a word may have a value in the shell, other than by a scheduler."""
        named = (re.fullmatch(r"\$\{?([A-Za-z_]\w*|[0-9]+|[@*#])\}?", piece.text) for piece in each.pieces if piece.missing)
        return any(name is not None and (self.is_unknown(name[1]) or name[1] in self._environment) for name in named)

    def fields(self, parts: Parts) -> list[Word]:
        """Return the words that a word of the script becomes: none, one or several."""
        folder = Path(self._set["PWD"][0].text) if "PWD" in self._set else Path.cwd()
        return [word for each in with_braces(parts) for word in with_files(each, self._divided(each), folder)]

    def _divided(self, parts: Parts) -> list[Word]:
        """Return the words of a word without braces, split at the blanks of what is unquoted."""
        if (whole := self._array_alone(parts)) is not None:
            return list(whole)
        found = self._fragments(parts)
        if ("IFS" in self._set or "IFS" in self._unknown) and any(
            each.splits and not _PLAIN_VALUE.fullmatch(each.piece.text) for each in found
        ):
            message = f"`{clipped(self.source)}` sets IFS, which divides `{clipped(found[0].piece.text)}` at other characters than blanks"
            raise InputError(message, hint=GIVE_LINE)
        return _split(found, keeps_empty=any(part.quoted for part in parts))

    def divided(self, words: Sequence[Word]) -> list[Word]:
        """Return words that are split at their blanks."""
        fragments = ([_Fragment(piece=piece, splits=not piece.missing) for piece in each.pieces] for each in words)
        return [word for each in fragments for word in _split(each, keeps_empty=False)]

    def single(self, parts: Parts) -> Word:
        """Return a word that is not split, as an assignment has it."""
        return Word(pieces=tuple(each.piece for each in self._fragments(parts)))

    def _array_alone(self, parts: Parts) -> tuple[Word, ...] | None:
        """Return the words of `"${ARGS[@]}"` or `"$@"`, if a word is nothing else."""
        alone = [part for part in parts if not (isinstance(part, LiteralText) and not part.text)]
        if len(alone) != 1 or not isinstance(part := alone[0], Expansion) or part.kind != "variable":
            return None
        match = _PARAMETER.fullmatch(part.body)
        if match is None or (part.quoted and "*" in (match["name"], (match["index"] or "")[1:-1])):
            return None
        if match["how"] and not self._is_itself_if_set(match):
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
        return tuple(self.divided(found))

    def _is_itself_if_set(self, match: re.Match[str]) -> bool:
        """Return whether an expansion such as `${A[@]:-x}` or `${A[@]+"${A[@]}"}` stands for the words of an array that has some."""
        words = self.arguments if match["name"] == "@" else self._set.get(match["name"], ())
        own = match["name"] + (match["index"] or "")
        return bool(words) and (match["how"] in ("-", ":-") or (match["how"] in ("+", ":+") and match["rest"].strip('"') == f"${{{own}}}"))

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
            raise InputError(message, hint=GIVE_LINE)

    def _pieces(self, part: Expansion, depth: int) -> list[WordPiece]:
        missing = [WordPiece(text=part.source, origin=f"{self.source}:{part.line}", missing=True)]
        if part.kind == "arithmetic":
            return self._arithmetic(part, depth) or missing
        if part.kind == "command":
            return self._directory(part) or self._computed(part) or self._gpu_count(part) or self._date(part) or missing
        match = _PARAMETER.fullmatch(part.body)
        if match is None:
            return missing
        name, index, how, rest = match["name"], match["index"], match["how"] or "", match["rest"] or ""
        value = self._value(name, index or "")
        if part.source == "~" and value is None:  # there is no home, so the program gets the word as it stands
            return [dataclasses.replace(missing[0], missing=False)]
        if how.startswith(("#", "%", "/")):
            return trimmed(value, how, rest) or missing
        stated = value is not None and (bool("".join(piece.text for piece in value)) or not how.startswith(":"))
        if how.endswith("+"):
            return self._text(rest, part, depth) if stated else []
        if stated:
            assert value is not None
            return value
        if how.endswith(("-", "=")) and not self.is_unknown(name) and not _SHELLS_OWN.fullmatch(name):
            found = self._text(rest, part, depth)
            if how.endswith("="):
                self._set[name] = (Word(pieces=tuple(found)),)
            return found
        return [] if not how and self._is_never_set(name, index or "") else missing

    def _is_never_set(self, name: str, index: str) -> bool:
        """Return whether a variable is empty: all that sets it are assignments of the script that it does not reach."""
        known = name in self._assigned and index in ("", "[@]", "[*]") and not self.is_unknown(name)
        return known and not (name in self._set or name in self._environment or SET_LATER.fullmatch(name))

    def _text(self, rest: str, part: Expansion, depth: int) -> list[WordPiece]:
        """Return the pieces of a text inside an expansion, such as a default."""
        commands = parse_script(f": {rest}", source=self.source) if rest.strip() else ()
        words = commands[0].words[1:] if commands and isinstance(commands[0], Simple) else ()
        words = tuple(map(without_home, words)) if part.quoted else words
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
        if self.is_unknown(name):
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
            return at_index(words, index)
        if name in self._environment and not index and not is_secret(name, self._environment[name]):
            return [WordPiece(text=self._environment[name], origin=f"{ENVIRONMENT} {name}")]
        return None

    def _arithmetic(self, part: Expansion, depth: int) -> list[WordPiece]:
        """Return the value of an arithmetic expression; nothing if it cannot be computed."""
        commands = parse_script(f': "{part.body.replace(chr(34), "")}"', source=self.source)
        words = commands[0].words if commands and isinstance(commands[0], Simple) else ()
        pieces = [each.piece for each in self._fragments(words[1], depth + 1)] if len(words) > 1 else []
        self.forget(set_by_arithmetic(part.body))
        text = re.sub(r"[A-Za-z_]\w*", lambda found: self._number(found[0]), "".join(piece.text for piece in pieces))
        if any(piece.missing for piece in pieces) or (number := compute(text)) is None:
            return []
        return [WordPiece(text=str(number), origin=f"{self.source}:{part.line}")]

    def _computed(self, part: Expansion) -> list[WordPiece]:
        """Return what a command computes from its words alone, such as `$(expr A \\* B)` or `$(dirname A)`; nothing for any other."""
        commands = parse_script(part.body, source=self.source) if COMPUTES.match(part.body) else ()
        if len(commands) != 1 or not isinstance(commands[0], Simple) or commands[0].assignments:
            return []
        words = [word for parts in commands[0].words for word in self.fields(parts)]
        text = "" if any(word.missing for word in words) else computed(texts(words))
        return [WordPiece(text=text, origin=f"{self.source}:{part.line}")] if text else []

    def _gpu_count(self, part: Expansion) -> list[WordPiece]:
        """Return the number of GPUs of a host, for the usual ways to ask for it; nothing if it is not known."""
        count, restricts = self._gpus, counts_visible_gpus(part.body)
        visible = self._value("CUDA_VISIBLE_DEVICES", "") if restricts else None
        if count is None or not (restricts or counts_gpus(part.body)) or any(piece.missing for piece in visible or ()):
            return []
        if restricts and self.is_unknown("CUDA_VISIBLE_DEVICES"):
            return []
        if visible:
            count = min(count, "".join(piece.text for piece in visible).count(",") + 1)
        return [WordPiece(text=str(count), origin=f"{self.source}:{part.line}")]

    def _date(self, part: Expansion) -> list[WordPiece]:
        """Return what `$(date +FORMAT)` prints; nothing for any other command."""
        date = printed_date(part.body)
        return [WordPiece(text=date, origin=f"{self.source}:{part.line}")] if date else []

    def _number(self, name: str) -> str:
        value = self._value(name, "")
        return "".join(piece.text for piece in value) if value is not None and not any(piece.missing for piece in value) else "?"

    def _directory(self, part: Expansion) -> list[WordPiece]:
        """Return the folder of the script, for the usual ways to ask for it; nothing for any other command."""
        origin = f"{self.source}:{part.line}"
        if re.fullmatch(r"\s*pwd\s*", part.body):
            return list(self._set["PWD"][0].pieces) if "PWD" in self._set else [WordPiece(text=str(Path.cwd()), origin=origin)]
        asks = r'.*dirname\s+(?:--\s+)?"?\$(?:\{BASH_SOURCE\[0\]\}|BASH_SOURCE|0|\{0\}|\{BASH_SOURCE\})"?.*'
        has_moved = "PWD" in self._set and not Path(self.script.text).is_absolute()
        if re.fullmatch(asks, part.body, re.DOTALL) and not has_moved and not any(piece.missing for piece in self.script.pieces):
            return [WordPiece(text=str(Path(self.script.text).absolute().parent), origin=origin)]
        return []


def set_by_arithmetic(text: str) -> list[str]:
    """Return the variables that an arithmetic expression sets, such as `N` in `N += 1`."""
    return [before or after for before, after in _SETS.findall(text)]


def _has_subscripts(assigned: Assigned) -> bool:
    """Return whether an array is given by subscripts, as in `([1]=a)`."""
    firsts = (parts[0] for parts in assigned.array or () if parts)
    return any(isinstance(each, LiteralText) and not each.quoted and re.match(r"\[.*", each.text) for each in firsts)


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
