"""Parse a shell script into commands, without running it: words with their quotes and expansions, assignments, conditions.

A command that this subset lacks, such as a loop or a function, is kept as `Opaque`, so that its effect is known to be unknown.
"""

import dataclasses
import re
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounds import DEEPEST, MOST_VALUES

OPERATORS = ("&&", "||", ";;", "\n", ";", "|", "&", "(", ")")
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[\n;|&()]")
_REDIRECTION = re.compile(r"(?:[0-9]*|&)(?:>>|>\||>&|<&|<<<|<>|>|<)")
_HERE = re.compile(r"[0-9]*<<-?\s*(['\"]?)(\w+)\1")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_SPECIAL = "@*#?$!-0123456789"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiteralText:
    """Literal text, with its line."""

    text: str
    line: int
    quoted: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """An expansion: `$NAME`, `${NAME:-default}`, `$((...))` or `$(...)`."""

    source: str
    """The expansion as the script has it."""
    kind: str
    """`variable`, `arithmetic` or `command`."""
    body: str
    line: int
    quoted: bool = False


Part = LiteralText | Expansion
Parts = tuple[Part, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An assignment: of a word, or of the words of an array."""

    name: str
    value: Parts
    array: tuple[Parts, ...] | None = None
    adds: bool = False
    """True for `NAME+=...`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simple:
    """A simple command: assignments, then words; `ended_by` is the operator that follows it."""

    line: int
    assignments: tuple[Assigned, ...] = ()
    words: tuple[Parts, ...] = ()
    ended_by: str = "\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """An `if` command: branches with their conditions; the last condition is empty for `else`."""

    line: int
    branches: tuple[tuple[tuple["Command", ...], tuple["Command", ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CaseCommand:
    """A `case` command: its word, and branches with their patterns."""

    line: int
    word: Parts
    branches: tuple[tuple[tuple[Parts, ...], tuple["Command", ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A loop, a function or another compound command, with the commands inside."""

    line: int
    kind: str
    body: tuple["Command", ...] = ()


Command = Simple | Conditional | CaseCommand | Opaque


def parse_script(text: str, *, source: str) -> tuple[Command, ...]:
    """Return the commands of a script; raises InputError for a text that is no shell script."""
    parser = _Parser(_Lexer(text, source).tokens(), source)
    return parser.block(())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    operator: str
    parts: Parts
    line: int

    @property
    def bare(self) -> str:
        """Return the text of an unquoted literal word; empty for any other."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only.text if isinstance(only, LiteralText) and not only.quoted else ""


class _Lexer:
    """Cuts a script into operators and words."""

    def __init__(self, text: str, source: str) -> None:
        self._text, self._source = text.replace("\\\r\n", "").replace("\r\n", "\n"), source
        self._at, self._line = 0, 1
        self._here: list[str] = []

    def tokens(self) -> list[_Token]:
        found: list[_Token] = []
        while self._at < len(self._text):
            if len(found) > MOST_VALUES:
                raise self._error("it has too many words")
            self._skip_blanks()
            if self._at >= len(self._text):
                break
            if match := _HERE.match(self._text, self._at):
                self._here.append(match[2])
                self._at = match.end()
            elif (match := _REDIRECTION.match(self._text, self._at)) and match[0].strip("0123456789"):
                self._at = match.end()
                self._skip_blanks()
                self._word()
            elif match := _OPERATOR.match(self._text, self._at):
                found.append(_Token(operator=match[0][:2].replace("|&", "|"), parts=(), line=self._line))
                self._at = match.end()
                if match[0] == "\n":
                    self._line += 1
                    self._skip_here_documents()
            else:
                line = self._line
                found.append(_Token(operator="", parts=self._word(), line=line))
        return [*found, _Token(operator="\n", parts=(), line=self._line)]

    def _skip_blanks(self) -> None:
        while self._at < len(self._text):
            if self._text.startswith("\\\n", self._at):
                self._at, self._line = self._at + 2, self._line + 1
            elif self._text[self._at] in " \t":
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _skip_here_documents(self) -> None:
        for end in self._here:
            found = re.compile(rf"^\t*{re.escape(end)}$", re.MULTILINE).search(self._text, self._at)
            stop = found.end() if found else len(self._text)
            self._line += self._text.count("\n", self._at, stop)
            self._at = stop
        self._here.clear()

    def _word(self) -> Parts:
        parts: list[Part] = []
        while self._at < len(self._text):
            each = self._text[self._at]
            if each in " \t\n;|&()<>":
                if (
                    each == "("
                    and parts
                    and isinstance(last := parts[-1], LiteralText)
                    and _ASSIGNED.fullmatch(last.text)
                    and not last.quoted
                ):
                    break  # an array follows
                if each in "<>" and parts and self._text.startswith(("<(", ">("), self._at):
                    raise self._error("it has a process substitution")
                break
            if self._text.startswith("\\\n", self._at):
                self._at, self._line = self._at + 2, self._line + 1
            elif each == "\\":
                parts.append(LiteralText(text=self._text[self._at + 1 : self._at + 2], line=self._line, quoted=True))
                self._at += 2
            elif each == "'":
                end = self._closing("'")
                parts += self._lines(self._text[self._at + 1 : end])
                self._at = end + 1
            elif each == '"':
                self._at += 1
                parts += self._double_quoted()
            elif each == "$" or each == "`":
                parts.append(self._expansion(quoted=False))
            else:
                match = re.compile(r"[^\s;|&()<>\\'\"$`]+").match(self._text, self._at)
                assert match is not None
                parts.append(LiteralText(text=match[0], line=self._line))
                self._at = match.end()
        return _joined(parts)

    def _closing(self, quote: str) -> int:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            raise self._error(f"a {quote} is not closed")
        return end

    def _lines(self, text: str) -> list[Part]:
        """Return quoted text in pieces of one line each, so that each has its line number."""
        parts: list[Part] = []
        for each in text.splitlines(keepends=True) or [""]:
            parts.append(LiteralText(text=each, line=self._line, quoted=True))
            self._line += each.count("\n")
        return parts

    def _double_quoted(self) -> list[Part]:
        parts: list[Part] = [LiteralText(text="", line=self._line, quoted=True)]
        while self._at < len(self._text):
            each = self._text[self._at]
            if each == '"':
                self._at += 1
                return parts
            if self._text.startswith("\\\n", self._at):
                self._at, self._line = self._at + 2, self._line + 1
            elif each == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`"):
                parts.append(LiteralText(text=self._text[self._at + 1], line=self._line, quoted=True))
                self._at += 2
            elif each in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                match = re.compile(r'\n|\\|[^"\\$`\n]+').match(self._text, self._at)
                assert match is not None
                parts.append(LiteralText(text=match[0], line=self._line, quoted=True))
                self._line += match[0].count("\n")
                self._at = match.end()
        raise self._error('a " is not closed')

    def _expansion(self, *, quoted: bool) -> Part:
        start, line = self._at, self._line
        text = self._text

        def found(kind: str, body: str, end: int) -> Expansion:
            self._line += text.count("\n", start, end)
            self._at = end
            return Expansion(source=text[start:end], kind=kind, body=body, line=line, quoted=quoted)

        if text[start] == "`":
            end = self._closing("`")
            return found("command", text[start + 1 : end], end + 1)
        if text.startswith("$((", start) and (end := self._balanced(start + 1, "()")) and text[end - 2 : end] == "))":
            return found("arithmetic", text[start + 3 : end - 2], end)
        if text.startswith("$(", start):
            end = self._balanced(start + 1, "()")
            return found("command", text[start + 2 : end - 1], end)
        if text.startswith("${", start):
            end = self._balanced(start + 1, "{}")
            return found("variable", text[start + 2 : end - 1], end)
        if match := _NAME.match(text, start + 1):
            return found("variable", match[0], match.end())
        if text[start + 1 : start + 2] in tuple(_SPECIAL):
            return found("variable", text[start + 1], start + 2)
        self._at += 1
        return LiteralText(text="$", line=line, quoted=quoted)

    def _balanced(self, start: int, pair: str) -> int:
        """Return the position after the bracket that closes the one at `start`."""
        depth, at, opening, closing = 0, start, pair[0], pair[1]
        while at < len(self._text):
            each = self._text[at]
            if each == "\\":
                at += 1
            elif each == "'" and pair == "()":
                at = self._text.find("'", at + 1)
                if at < 0:
                    break
            elif each == opening:
                depth += 1
                if depth > DEEPEST:
                    raise self._error(f"it is nested more than {DEEPEST} deep")
            elif each == closing:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        raise self._error(f"a {opening} is not closed")

    def _error(self, why: str) -> InputError:
        return InputError(
            f"line {self._line} of `{clipped(self._source)}` cannot be read: {why}", hint="give the launch line that it starts"
        )


def _joined(parts: Sequence[Part]) -> Parts:
    """Return the parts, of which neighbouring unquoted texts of one line are one."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if (
            isinstance(part, LiteralText)
            and isinstance(last, LiteralText)
            and not part.quoted
            and not last.quoted
            and last.line == part.line
        ):
            joined[-1] = dataclasses.replace(last, text=last.text + part.text)
        else:
            joined.append(part)
    return tuple(joined)


class _Parser:
    """Groups tokens into commands."""

    def __init__(self, tokens: Sequence[_Token], source: str) -> None:
        self._tokens, self._source, self._at, self._depth = tokens, source, 0, 0

    def block(self, ends: Sequence[str]) -> tuple[Command, ...]:
        """Return the commands up to a word or an operator in `ends`, or to the end of the script."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(f"`{clipped(self._source)}` is nested more than {DEEPEST} deep", hint="give the launch line that it starts")
        found: list[Command] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.bare in ends or token.operator in ends:
                break
            if token.operator:
                self._at += 1
                continue
            found.append(self._command(token))
        self._depth -= 1
        return tuple(found)

    def _command(self, token: _Token) -> Command:
        match token.bare:
            case "if":
                return self._conditional(token.line)
            case "for" | "while" | "until" | "select":
                self._skip_to("do")
                return Opaque(line=token.line, kind=f"a `{token.bare}` loop", body=self._closed("done"))
            case "case":
                return self._case(token.line)
            case "function":
                self._at += 2
                return self._function(token.line)
            case "{":
                self._at += 1
                return Opaque(line=token.line, kind="{", body=self._closed("}"))
        following = self._tokens[self._at + 1 : self._at + 3]
        if token.bare and not token.bare.endswith("=") and [each.operator for each in following] == ["(", ")"]:
            self._at += 1
            return self._function(token.line)
        return self._simple()

    def _function(self, line: int) -> Command:
        self._skip_to("{")
        return Opaque(line=line, kind="a function", body=self._closed("}"))

    def _case(self, line: int) -> Command:
        word = self._tokens[self._at + 1].parts if self._at + 1 < len(self._tokens) else ()
        self._skip_to("in")
        branches: list[tuple[tuple[Parts, ...], tuple[Command, ...]]] = []
        while self._at < len(self._tokens) and self._tokens[self._at].bare != "esac":
            patterns = []
            while self._at < len(self._tokens) and self._tokens[self._at].operator != ")" and self._tokens[self._at].bare != "esac":
                patterns += [] if self._tokens[self._at].operator else [self._tokens[self._at].parts]
                self._at += 1
            self._at += self._at < len(self._tokens) and self._tokens[self._at].operator == ")"
            body = self.block((";;", "esac"))
            branches += [(tuple(patterns), body)] if patterns else []
            self._at += self._at < len(self._tokens) and self._tokens[self._at].operator == ";;"
        self._at += 1
        return CaseCommand(line=line, word=word, branches=tuple(branches))

    def _conditional(self, line: int) -> Conditional:
        branches = []
        self._at += 1
        condition = self.block(("then",))
        while True:
            self._at += 1
            branches.append((condition, self.block(("elif", "else", "fi"))))
            ending = self._tokens[self._at].bare if self._at < len(self._tokens) else ""
            if ending == "elif":
                self._at += 1
                condition = self.block(("then",))
            elif ending == "else":
                condition = ()
            elif ending == "fi":
                self._at += 1
                return Conditional(line=line, branches=tuple(branches))
            else:
                raise InputError(
                    f"line {line} of `{clipped(self._source)}`: an `if` has no `fi`", hint="give the launch line that it starts"
                )

    def _skip_to(self, bare: str) -> None:
        while self._at < len(self._tokens) and self._tokens[self._at].bare != bare:
            self._at += 1
        self._at += 1

    def _closed(self, bare: str) -> tuple[Command, ...]:
        body = self.block((bare,))
        self._at += 1
        return body

    def _simple(self) -> Simple:
        line = self._tokens[self._at].line
        assignments: list[Assigned] = []
        words: list[Parts] = []
        while self._at < len(self._tokens) and not (token := self._tokens[self._at]).operator:
            self._at += 1
            made = self._assigned(token) if not words or (words[0][:1] and _declares(words[0])) else None
            if (made and not words) or made:
                assignments.append(made)
            else:
                words.append(token.parts)
        ended_by = self._tokens[self._at].operator if self._at < len(self._tokens) else "\n"
        return Simple(line=line, assignments=tuple(assignments), words=tuple(words), ended_by=ended_by)

    def _assigned(self, token: _Token) -> Assigned | None:
        first = token.parts[0] if token.parts else None
        if not isinstance(first, LiteralText) or first.quoted or not (match := _ASSIGNED.match(first.text)):
            return None
        array = None
        if (
            match.end() == len(first.text)
            and len(token.parts) == 1
            and self._at < len(self._tokens)
            and self._tokens[self._at].operator == "("
        ):
            self._at += 1
            array = []
            while self._at < len(self._tokens) and self._tokens[self._at].operator != ")":
                if not self._tokens[self._at].operator:
                    array.append(self._tokens[self._at].parts)
                self._at += 1
            self._at += 1
        rest = dataclasses.replace(first, text=first.text[match.end() :])
        value = tuple(part for part in (rest, *token.parts[1:]) if not (part is rest and not rest.text))
        return Assigned(name=match[1], value=value, array=None if array is None else tuple(array), adds=bool(match[2]))


def _declares(parts: Parts) -> bool:
    """Return whether a word declares the assignments that follow it."""
    return len(parts) == 1 and isinstance(parts[0], LiteralText) and parts[0].text in ("export", "declare", "local", "readonly", "typeset")
