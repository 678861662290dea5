"""The simple commands of a shell script, each with its line, its neighbours and its context.

Compound commands are not a tree here: a rule asks "is this in a loop, in a function, in the background?", and that is
what a command carries. Commands inside $(...) are listed before the command that uses them, marked `nested`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from shoal.batch.shell_words import Heredoc, ShellToken, ShellWord, SyntaxProblem, tokenize

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=", re.ASCII)
_OPENERS = {"if": "if", "while": "loop", "until": "loop", "{": "group"}
#: What ends a compound command, and what it ends.
_CLOSERS = {"fi": "if", "done": "loop", "esac": "case", "}": "group"}
_ENDS = {**{opened: closer for closer, opened in _CLOSERS.items()}, "subshell": ")"}
_CONTINUATION_WORDS = frozenset({"then", "else", "elif", "do"})
_MAX_DEPTH = 6


class ShellAssignment(NamedTuple):
    name: str
    value: str
    raw: str
    line: int


class Redirect(NamedTuple):
    operator: str
    target: str
    heredoc: Heredoc | None = None


class ShellCommand(NamedTuple):
    """`after` is the operator behind it (newline, ;, &, &&, ||, | or nothing); `within` names what it stands in."""

    words: tuple[ShellWord, ...]
    line: int
    assigns: tuple[ShellAssignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    before: str = ""
    after: str = ""
    within: tuple[str, ...] = ()
    function: str | None = None
    nested: bool = False
    condition: bool = False
    background: bool = False
    piped: bool = False
    #: All its words as they are written.
    raw: str = ""

    @property
    def name(self) -> str:
        return self.words[0].text if self.words else ""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    @property
    def last_line(self) -> int:
        last = self.words[-1] if self.words else None
        return self.line if last is None else last.line + last.raw.count("\n")


def command_of(argv: Sequence[str]) -> ShellCommand:
    """Words that are started as they are, as the command that bash would read from their quoted text."""
    return ShellCommand(tuple(ShellWord(word, shlex.quote(word), 0) for word in argv), 0, raw=shlex.join(argv))


class ParsedScript(NamedTuple):
    commands: tuple[ShellCommand, ...]
    heredocs: tuple[Heredoc, ...]
    problems: tuple[SyntaxProblem, ...]
    functions: frozenset[str]


def parse_shell(text: str, first_line: int = 1, depth: int = 0) -> ParsedScript:
    """Read shell text; never fails."""
    tokens, problems = tokenize(text, first_line)
    reader = _CommandReader(tokens)
    reader.read()
    commands: list[ShellCommand] = []
    for command, hidden in zip(reader.commands, reader.hidden, strict=True):
        if depth < _MAX_DEPTH:
            for word in (*command.words, *hidden):
                for source, line in word.inside:
                    inner = parse_shell(source, line, depth + 1)
                    commands += [
                        one._replace(nested=True, function=command.function, within=command.within)
                        for one in inner.commands
                    ]
        commands.append(command)
    heredocs = tuple(token.heredoc for token in tokens if token.heredoc is not None)
    if not problems:  # behind one, bash reads nothing, and neither does this
        problems = reader.problems()
    return ParsedScript(tuple(commands), heredocs, tuple(problems), frozenset(reader.functions))


class _CommandReader:
    def __init__(self, tokens: list[ShellToken]) -> None:
        self.tokens = tokens
        self.at = 0
        self.commands: list[ShellCommand] = []
        #: Words with substitutions that are no longer among a command's own: assignments, targets of redirects.
        self.hidden: list[list[ShellWord]] = []
        self.functions: set[str] = set()
        self.stack: list[tuple[str, int]] = []
        self.opened_at: list[int] = []
        self.mismatch: SyntaxProblem | None = None
        self.condition = 0
        self.before = ""

    def problems(self) -> list[SyntaxProblem]:
        """The first compound command that ends where none began, or that never ends."""
        if self.mismatch is not None:
            return [self.mismatch]
        for (what, _), line in zip(self.stack, self.opened_at, strict=True):
            if what in _ENDS:
                return [SyntaxProblem(line, f"a command begins here, and its {_ENDS[what]} is missing")]
        return []

    def _open(self, what: str) -> None:
        self.stack.append((what, len(self.commands)))
        self.opened_at.append(self.tokens[min(self.at, len(self.tokens) - 1)].line)

    def read(self) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "newline":
                self._separate("\n")
            elif token.kind == "operator":
                self._operator(token)
            elif token.word is not None and token.kind == "word" and self._keyword(token.word):
                continue
            else:
                self._simple()
                continue
            self.at += 1

    def _separate(self, operator: str) -> None:
        self.before = operator

    def _operator(self, token: ShellToken) -> None:
        if token.value == "(":
            self._open("subshell")
        elif token.value == ")":
            self._close("subshell")
        elif token.value in (";;", ";&", ";;&"):
            self.at += 1
            self._patterns()
            self.at -= 1
        self._separate(token.value)

    def _close(self, what: str) -> None:
        """A compound ends; what stands behind it (&, |) holds for all that it contains."""
        opened = self.stack[-1][0] if self.stack else ""
        # The body of a function is any compound command; a ) may end a pattern or arithmetic that was read as words.
        if what not in (opened, "subshell") and not opened.startswith("function ") and self.mismatch is None:
            self.mismatch = SyntaxProblem(self.tokens[self.at].line, f"{_ENDS[what]} stands here and ends nothing")
        start = self.stack.pop()[1] if self.stack else len(self.commands)
        if self.opened_at:
            self.opened_at.pop()
        following = self.at + 1
        while following < len(self.tokens) and self.tokens[following].kind == "redirect":
            following += 1
        operator = self.tokens[following].value if following < len(self.tokens) else ""
        if operator in ("&", "|", "|&"):
            for index in range(start, len(self.commands)):
                old = self.commands[index]
                self.commands[index] = old._replace(background=True) if operator == "&" else old._replace(piped=True)

    def _keyword(self, word: ShellWord) -> bool:
        raw = word.raw
        if raw in _OPENERS:
            self._open(_OPENERS[raw])
            self.condition = len(self.stack) if raw != "{" else self.condition
        elif raw in _CONTINUATION_WORDS:
            self.condition = len(self.stack) if raw == "elif" else 0
        elif raw in _CLOSERS:
            self._close(_CLOSERS[raw])
            self.condition = 0
        elif raw in ("for", "select"):
            self._open("loop")
            self._skip_line()
        elif raw == "case":
            self._open("case")
            self._case()
            return True
        elif raw == "function":
            self.at += 1
            self._function(self._next_word())
            return True
        elif raw in ("!", "time", "coproc"):
            pass
        elif self._is(self.at + 1, "(") and self._is(self.at + 2, ")"):
            self._function(word.text)
            return True
        else:
            return False
        self.at += 1
        return True

    def _is(self, index: int, operator: str) -> bool:
        return index < len(self.tokens) and self.tokens[index].value == operator

    def _next_word(self) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return token.word.text if token is not None and token.word is not None else ""

    def _function(self, name: str) -> None:
        self.at += 1
        while self._is(self.at, "(") or self._is(self.at, ")") or self._is(self.at, "\n"):
            self.at += 1
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        self.functions.add(name)
        self._open(f"function {name}")
        if token is not None and token.word is not None and token.word.raw == "{":
            self.at += 1

    def _skip_line(self) -> None:
        """The header of a loop: its words are data."""
        while self.at + 1 < len(self.tokens):
            token = self.tokens[self.at + 1]
            if token.kind == "newline" or token.value == ";":
                return
            self.at += 1

    def _case(self) -> None:
        self.at += 1
        while self.at < len(self.tokens) and self._next_word() != "in":
            self.at += 1
        self.at += 1
        self._patterns()

    def _patterns(self) -> None:
        """Up to the ) behind a pattern, or to esac."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.word is not None and token.word.raw == "esac":
                self._close("case")
                self.at += 1
                return
            self.at += 1
            if token.value == ")":
                return

    def _simple(self) -> None:
        words: list[ShellWord] = []
        assigns: list[ShellAssignment] = []
        redirects: list[Redirect] = []
        hidden: list[ShellWord] = []
        line = self.tokens[self.at].line
        test = self._next_word() == "[["
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "redirect" and token.word is not None:
                redirects.append(Redirect(token.value, token.word.text, token.heredoc))
                hidden.append(token.word)
            elif token.word is not None:
                match = None if words else _ASSIGNMENT.match(token.word.raw)
                if match is None:
                    words.append(token.word)
                    if test and token.word.raw == "]]":
                        test = False
                else:
                    value = token.word.text.partition("=")[2]
                    assigns.append(ShellAssignment(match[1], value, token.word.raw, token.line))
                    hidden.append(token.word)
            elif not test or token.kind == "newline":
                break
            self.at += 1
        after = self.tokens[self.at].value if self.at < len(self.tokens) else ""
        names = [what for what, _ in self.stack]
        inside = [name.removeprefix("function ") for name in names if name.startswith("function ")]
        command = ShellCommand(
            words=tuple(words),
            line=line,
            assigns=tuple(assigns),
            redirects=tuple(redirects),
            before=self.before,
            after=after,
            within=tuple(name.split(" ")[0] for name in names),
            function=inside[-1] if inside else None,
            condition=bool(self.condition),
            background=after == "&",
            piped=after in ("|", "|&"),
            raw=" ".join([*(assign.raw for assign in assigns), *(word.raw for word in words)]),
        )
        if words or assigns:
            self.commands.append(command)
            self.hidden.append(hidden)
            if after == "&":
                self._background_pipe()

    def _background_pipe(self) -> None:
        """`a | b &`: the whole pipe is in the background."""
        index = len(self.commands) - 1
        while index > 0 and self.commands[index].before in ("|", "|&") and self.commands[index - 1].piped:
            index -= 1
            self.commands[index] = self.commands[index]._replace(background=True)
