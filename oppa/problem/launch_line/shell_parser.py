"""Parse a shell script into commands, without running it."""

import dataclasses
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounds import DEEPEST
from oppa.problem.launch_line.shell_expansions import with_home
from oppa.problem.launch_line.shell_lexer import ASSIGNED, Lexer, Token
from oppa.problem.launch_line.shell_syntax import (
    DECLARES,
    FUNCTION,
    GIVE_LINE,
    SUBSHELL,
    Assigned,
    CaseCommand,
    Command,
    Conditional,
    LiteralText,
    Opaque,
    Parts,
    Simple,
)


def parse_script(text: str, *, source: str) -> tuple[Command, ...]:
    """Return the commands of a script; raises InputError for a text that is no shell script."""
    parser = _Parser(Lexer(text, source).tokens(), source)
    return parser.block(())


class _Parser:
    """Groups tokens into commands."""

    def __init__(self, tokens: Sequence[Token], source: str) -> None:
        self._tokens, self._source, self._at, self._depth = tokens, source, 0, 0

    def block(self, ends: Sequence[str]) -> tuple[Command, ...]:
        """Return the commands up to a word or an operator in `ends`, or to the end of the script."""
        self._deepen()
        found: list[Command] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.bare in ends or token.operator in ends:
                break
            if token.operator and token.operator != "(":
                self._at += 1
                continue
            found.append(self._ended(self._command(token)))
        self._depth -= 1
        return tuple(found)

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(f"`{clipped(self._source)}` is nested more than {DEEPEST} deep", hint=GIVE_LINE)

    def _ended(self, command: Command) -> Command:
        """Return a command with the operator that follows it."""
        following = self._tokens[self._at].operator if self._at < len(self._tokens) else "\n"
        return dataclasses.replace(command, ended_by=following or "\n")

    def _command(self, token: Token) -> Command:
        if token.operator == "(":
            self._at += 1
            body = self.block((")",))
            self._at += 1
            return Opaque(line=token.line, kind=SUBSHELL, body=body)
        match token.bare:
            case "if":
                return self._conditional(token.line)
            case "for" | "while" | "until" | "select":
                return self._loop(token)
            case "case":
                return self._case(token.line)
            case "function":
                self._at += 2
                return self._function(token.line, self._tokens[self._at - 1].bare if self._at <= len(self._tokens) else "")
            case "{":
                self._at += 1
                return Opaque(line=token.line, kind="{", body=self._closed("}"))
        following = self._tokens[self._at + 1 : self._at + 3]
        if token.bare and not token.bare.endswith("=") and [each.operator for each in following] == ["(", ")"]:
            self._at += 1
            return self._function(token.line, token.bare)
        return self._simple()

    def _loop(self, token: Token) -> Command:
        """Return a loop with its condition among its commands, and with its variable."""
        self._at += 1
        names: tuple[str, ...] = ()
        if token.bare in ("for", "select"):
            names = (self._tokens[self._at].bare,) if self._at < len(self._tokens) else ()
            arithmetic = [self._simple()] if names == ("let",) else []
            self._skip_to("do")
            return Opaque(line=token.line, kind=f"a `{token.bare}` loop", body=(*arithmetic, *self._closed("done")), names=names)
        condition = self._closed("do")
        return Opaque(line=token.line, kind=f"a `{token.bare}` loop", body=(*condition, *self._closed("done")), condition=condition)

    def _function(self, line: int, name: str) -> Command:
        """Return a function; its body is a group, a subshell or another compound command."""
        if [each.operator for each in self._tokens[self._at : self._at + 2]] == ["(", ")"]:
            self._at += 2
        while self._at < len(self._tokens) and self._tokens[self._at].operator == "\n":
            self._at += 1
        self._deepen()
        body = (self._command(self._tokens[self._at]),) if self._at < len(self._tokens) else ()
        self._depth -= 1
        return Opaque(line=line, kind=FUNCTION, body=body, names=(name,))

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
                raise InputError(f"line {line} of `{clipped(self._source)}`: an `if` has no `fi`", hint=GIVE_LINE)

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
            if made:
                assignments.append(made)
            else:
                words.append(token.parts)
        return Simple(line=line, assignments=tuple(assignments), words=tuple(words))

    def _assigned(self, token: Token) -> Assigned | None:
        first = token.parts[0] if token.parts else None
        if not isinstance(first, LiteralText) or first.quoted or not (match := ASSIGNED.match(first.text)):
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
        return Assigned(name=match[1], value=with_home(value), array=None if array is None else tuple(array), adds=bool(match[2]))


def _declares(parts: Parts) -> bool:
    """Return whether a word declares the assignments that follow it."""
    return len(parts) == 1 and isinstance(parts[0], LiteralText) and parts[0].text in DECLARES
