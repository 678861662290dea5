"""A shell script as words, operators and here-documents, with line numbers.

It reads what bash reads, without running anything: quotes, continuations, comments, substitutions, arrays. It never
fails; a quote or here-document that does not end is a `SyntaxProblem`, and has the rest of the text, as in bash.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PLAIN = re.compile(r"[^\s\\'\"$`|&;()<>]+")
_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[|&;()]")
_REDIRECT = re.compile(r"(\d*)(&>>|&>|<<<|<<-|<<|>>|>&|<&|<>|>\||<(?!\()|>(?!\())")
#: What cannot be the target of a redirect: the end of the line, a comment, or another operator.
_NO_TARGET = re.compile(r"\Z|[\n#;|&)]|[<>](?!\()")
_ARRAY = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=\Z", re.ASCII)
_DOLLAR_SINGLE = re.compile(r"((?:[^'\\]|\\.)*)'", re.DOTALL)
#: What a backslash and a letter stand for in $'...'; the rarer ones stay as written.
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_DOUBLE = re.compile(r'[^"\\$`]+')


#: The text of `...`, and its end; a backquote inside it is escaped.
_TO_BACKQUOTE = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL)


class ShellWord(NamedTuple):
    """`text` without quotes, expansions as written; `raw` as written; `inside`: (source, line) of substitutions."""

    text: str
    raw: str
    line: int
    inside: tuple[tuple[str, int], ...] = ()


class Heredoc(NamedTuple):
    """A here-document; its text is data for a program, never a directive of this script."""

    line: int
    delimiter: str
    quoted: bool
    body: str
    last_line: int


class ShellToken(NamedTuple):
    """`kind`: word, operator, redirect or newline; a redirect carries its target or its here-document."""

    kind: str
    value: str
    line: int
    word: ShellWord | None = None
    heredoc: Heredoc | None = None


class SyntaxProblem(NamedTuple):
    """`is_warning`: bash goes on with a warning."""

    line: int
    sentence: str
    is_warning: bool = False


def tokenize(text: str, first_line: int = 1) -> tuple[list[ShellToken], list[SyntaxProblem]]:
    """All tokens of a script in order, and what could not be read to its end."""
    scanner = _ShellScanner(text, first_line)
    scanner.scan()
    return scanner.tokens, scanner.problems


class _ShellScanner:
    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.at = 0
        self.line = first_line
        self.tokens: list[ShellToken] = []
        self.problems: list[SyntaxProblem] = []
        self.waiting: list[tuple[int, ShellWord, bool]] = []

    def scan(self) -> None:
        text, end = self.text, len(self.text)
        while self.at < end:
            if (blank := _BLANK.match(text, self.at)) is not None:
                self._move(blank.end())
                continue
            letter = text[self.at]
            if letter == "\n":
                self.tokens.append(ShellToken("newline", "\n", self.line))
                self._move(self.at + 1)
                if self.waiting:
                    self._heredocs()
            elif letter == "#":
                stop = text.find("\n", self.at)
                self.at = end if stop < 0 else stop
            elif text.startswith("((", self.at) and (stop := text.find("))", self.at)) > 0:
                self._arithmetic(stop + 2)
            elif (redirect := _REDIRECT.match(text, self.at)) is not None:
                self._redirect(redirect)
            elif (operator := _OPERATOR.match(text, self.at)) is not None:
                self.tokens.append(ShellToken("operator", operator[0], self.line))
                self._move(operator.end())
            else:
                line = self.line
                self.tokens.append(ShellToken("word", "", line, self._word()))
        if self.waiting:
            self._heredocs()

    def _move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _arithmetic(self, stop: int) -> None:
        raw = self.text[self.at : stop]
        self.tokens.append(ShellToken("word", "", self.line, ShellWord(raw, raw, self.line)))
        self._move(stop)

    def _redirect(self, match: re.Match[str]) -> None:
        line, operator = self.line, match[2]
        self._move(match.end())
        if (blank := _BLANK.match(self.text, self.at)) is not None:
            self._move(blank.end())
        ends = _NO_TARGET.match(self.text, self.at) is not None
        if ends:
            self.problems.append(SyntaxProblem(line, f"no file is named behind {operator}"))
        word = ShellWord("", "", line) if ends else self._word()
        if operator in ("<<", "<<-") and word.raw:
            self.waiting.append((len(self.tokens), word, operator == "<<-"))
        self.tokens.append(ShellToken("redirect", match[1] + operator, line, word))

    def _heredocs(self) -> None:
        for index, word, tabs in self.waiting:
            start, body = self.line, []
            while True:
                if self.at >= len(self.text):
                    self.problems.append(
                        SyntaxProblem(
                            self.tokens[index].line,
                            f"the here-document {word.text} begins here and never ends",
                            is_warning=True,
                        )
                    )
                    break
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self._move(min(stop + 1, len(self.text)))
                if (line.lstrip("\t") if tabs else line) == word.text:
                    break
                body.append(line)
            quoted = word.raw != word.text
            heredoc = Heredoc(start, word.text, quoted, "\n".join(body), self.line)
            self.tokens[index] = self.tokens[index]._replace(heredoc=heredoc)
        self.waiting.clear()

    def _word(self) -> ShellWord:
        text, start, line = self.text, self.at, self.line
        parts: list[str] = []
        inside: list[tuple[str, int]] = []
        while self.at < len(text):
            if (plain := _PLAIN.match(text, self.at)) is not None:
                parts.append(plain[0])
                self.at = plain.end()
                continue
            letter = text[self.at]
            if letter == "\\":
                if text.startswith("\\\n", self.at):
                    self._move(self.at + 2)
                    continue
                parts.append(text[self.at + 1 : self.at + 2])
                self.at = min(self.at + 2, len(text))
            elif letter == "'":
                parts.append(self._single())
            elif letter == '"':
                parts.append(self._double(inside))
            elif letter in "$`":
                parts.append(self._expansion(inside))
            elif letter == "(" and _ARRAY.fullmatch(text[start : self.at]):
                parts.append(self._array(inside))
            elif letter in "<>" and text.startswith("(", self.at + 1):
                self.at += 1
                parts.append(letter + self._balanced("(", ")", inside, commands=True))
            else:
                break
        if self.at == start:  # a character that begins nothing; never stand still
            parts.append(text[self.at : self.at + 1])
            self._move(self.at + 1)
        return ShellWord("".join(parts), text[start : self.at], line, tuple(inside))

    def _array(self, inside: list[tuple[str, int]]) -> str:
        line = self.line
        found = self._balanced("(", ")", [], commands=False)
        for token in tokenize(found[1:-1], line)[0]:
            inside += token.word.inside if token.word is not None else ()
        return found

    def _unclosed(self, line: int, what: str) -> None:
        self.problems.append(SyntaxProblem(line, f"{what} is opened here and never closed"))

    def _single(self) -> str:
        line, stop = self.line, self.text.find("'", self.at + 1)
        if stop < 0:
            self._unclosed(line, "a single quote")
            stop = len(self.text)
        found = self.text[self.at + 1 : stop]
        self._move(min(stop + 1, len(self.text)))
        return found

    def _dollar_single(self) -> str:
        """$'...', in which a quote may be escaped."""
        line, start = self.line, self.at + 1
        match = _DOLLAR_SINGLE.match(self.text, start)
        if match is None:
            self._unclosed(line, "a single quote")
            self._move(len(self.text))
            return self.text[start:]
        self._move(match.end())
        return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[0]), match[1])

    def _double(self, inside: list[tuple[str, int]]) -> str:
        line, parts = self.line, []
        self.at += 1
        while self.at < len(self.text):
            if (plain := _DOUBLE.match(self.text, self.at)) is not None:
                parts.append(plain[0])
                self._move(plain.end())
            elif self.text[self.at] == '"':
                self.at += 1
                return "".join(parts)
            elif self.text[self.at] == "\\":
                after = self.text[self.at + 1 : self.at + 2]
                parts.append("" if after == "\n" else after if after in '"\\$`' else f"\\{after}")
                self._move(min(self.at + 2, len(self.text)))
            elif self.text.startswith("$'", self.at):
                parts.append("$")  # inside double quotes this is a dollar and an apostrophe
                self.at += 1
            else:
                parts.append(self._expansion(inside))
        self._unclosed(line, "a double quote")
        return "".join(parts)

    def _expansion(self, inside: list[tuple[str, int]]) -> str:
        text = self.text
        if text[self.at] == "`":
            line, closing = self.line, _TO_BACKQUOTE.match(text, self.at + 1)
            if closing is None:
                self._unclosed(line, "a backquote")
            stop = len(text) if closing is None else closing.end() - 1
            found = text[self.at : min(stop + 1, len(text))]
            inside.append((text[self.at + 1 : stop].replace("\\`", "`"), line))
            self._move(min(stop + 1, len(text)))
            return found
        after = text[self.at + 1 : self.at + 2]
        if after == "(":
            self.at += 1
            arithmetic = text.startswith("((", self.at)
            return "$" + self._balanced("(", ")", inside, commands=not arithmetic)
        if after == "{":
            self.at += 1
            return "$" + self._balanced("{", "}", inside, commands=False)
        if after == "'":
            self.at += 1
            return self._dollar_single()
        self.at += 1
        return "$"

    def _balanced(self, opening: str, closing: str, inside: list[tuple[str, int]], *, commands: bool) -> str:
        """The text from `opening` to the `closing` that belongs to it, quotes and comments inside respected."""
        start, line, depth = self.at, self.line, 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == opening:
                depth += 1
            elif letter == closing:
                depth -= 1
                if depth == 0:
                    self.at += 1
                    if commands:
                        inside.append((self.text[start + 1 : self.at - 1], line))
                    return self.text[start : self.at]
            elif letter == "\\":
                self._move(min(self.at + 2, len(self.text)))
                continue
            elif letter == "'" and opening == "(":
                self._single()
                continue
            elif self.text.startswith("$'", self.at) and opening == "(":
                self.at += 1
                self._dollar_single()
                continue
            elif letter == '"':
                self._double([])
                continue
            elif letter == "#" and opening == "(" and self.text[self.at - 1] in " \t\n":
                stop = self.text.find("\n", self.at)
                self.at = len(self.text) if stop < 0 else stop
                continue
            self._move(self.at + 1)
        self._unclosed(line, "a substitution" if commands else f"a {opening}")
        return self.text[start : self.at]
