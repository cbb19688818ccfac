"""Cut a shell script into operators and words, with the quotes, the expansions and the line of each part."""

import dataclasses
import re
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounds import DEEPEST, MOST_VALUES
from oppa.problem.launch_line.shell_expansions import with_home
from oppa.problem.launch_line.shell_syntax import GIVE_LINE, Expansion, LiteralText, Part, Parts

_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[\n;|&()]")
_REDIRECTION = re.compile(r"(?:[0-9]*|&)(?:>>|>\||>&|<&|<<<|<>|>|<)")
_HERE = re.compile(r"[0-9]*<<-?\s*(['\"]?)(\w+)\1")
_NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_ESCAPED = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_SPECIAL = "@*#?$!-0123456789"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Holds an operator, or a word."""

    operator: str
    """Text of an operator; empty for a word."""
    parts: Parts
    line: int

    @property
    def bare(self) -> str:
        """Return the text of an unquoted literal word; empty for any other."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only.text if isinstance(only, LiteralText) and not only.quoted else ""


class Lexer:
    """Cuts a script into operators and words."""

    def __init__(self, text: str, source: str) -> None:
        self._text, self._source = text.replace("\\\r\n", "").replace("\r\n", "\n"), source
        self._at, self._line = 0, 1
        self._here: list[str] = []
        self._in_test = False
        """True inside `[[ ... ]]`, where `<` compares."""

    def tokens(self) -> list[Token]:
        """Return all tokens; raises InputError for a text that is no shell script."""
        found: list[Token] = []
        while self._at < len(self._text):
            if len(found) > MOST_VALUES:
                raise self._error("it has too many words")
            self._skip_blanks()
            if self._at >= len(self._text):
                break
            if self._text.startswith(("<(", ">("), self._at):
                raise self._error("it has a process substitution")
            if self._text.startswith("((", self._at) and self._arithmetic(found):
                continue
            if match := None if self._in_test else _HERE.match(self._text, self._at):
                self._here.append(match[2])
                self._at = match.end()
            elif self._in_test and self._text[self._at] in "<>":
                found.append(Token(operator="", parts=(LiteralText(text=self._text[self._at], line=self._line),), line=self._line))
                self._at += 1
            elif (match := _REDIRECTION.match(self._text, self._at)) and match[0].strip("0123456789"):
                self._at = match.end()
                self._skip_blanks()
                self._word()
            elif match := _OPERATOR.match(self._text, self._at):
                found.append(Token(operator=match[0][:2].replace("|&", "|"), parts=(), line=self._line))
                self._at = match.end()
                if match[0] == "\n":
                    self._line, self._in_test = self._line + 1, False
                    self._skip_here_documents()
            else:
                line = self._line
                found.append(Token(operator="", parts=with_home(self._word()), line=line))
                self._in_test = found[-1].bare == "[[" or (self._in_test and found[-1].bare != "]]")
        return [*found, Token(operator="\n", parts=(), line=self._line)]

    def _arithmetic(self, found: list[Token]) -> bool:
        """Read the command `((...))` as `let "..."`; return whether it is one."""
        end = self._balanced(self._at, "()")
        if self._text[end - 2 : end] != "))":
            return False
        body = self._text[self._at + 2 : end - 2]
        for text, quoted in (("let", False), (body, True)):
            found.append(Token(operator="", parts=(LiteralText(text=text, line=self._line, quoted=quoted),), line=self._line))
        self._line += body.count("\n")
        self._at = end
        return True

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
                break
            if self._text.startswith("\\\n", self._at):
                self._at, self._line = self._at + 2, self._line + 1
            elif each == "\\":
                parts.append(LiteralText(text=self._text[self._at + 1 : self._at + 2], line=self._line, quoted=True))
                self._at += 2
            elif match := _ESCAPED.match(self._text, self._at):
                text = match[1].encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")
                parts.append(LiteralText(text=text, line=self._line, quoted=True))
                self._line += match[0].count("\n")
                self._at = match.end()
            elif self._text.startswith('$"', self._at):
                self._at += 1
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
                match = re.compile(r"[^ \t\n;|&()<>\\'\"$`]+").match(self._text, self._at)
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
        return InputError(f"line {self._line} of `{clipped(self._source)}` cannot be read: {why}", hint=GIVE_LINE)


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
