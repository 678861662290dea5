"""Secrets must not leave this machine in a script, an argument list, a record or Slurm's copy of the environment.

A secret is known by its name (WANDB_API_KEY, DB_PASS, SLACK_WEBHOOK) or by its value: an address with a password in it,
a webhook, a connection string, a token with a known beginning.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from shoal.errors import InputError
from shoal.kernel import USER_VARIABLES, regex
from shoal.model import RunSpec

_SECRET_NAME = regex(
    r"(API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|JWT|WEBHOOK|COOKIE"
    r"|CONN(?:ECTION)?_?STR|_KEY$|_PAT$|_PASS$|_PW$|_PWD$|_AUTH$|_SESSION$|_DSN$|^(?:PASS|AUTH|DSN)$)",
    re.IGNORECASE,
)
#: Names that only look secret.
_HARMLESS_NAME = regex(
    r"^(SSH_AUTH_SOCK|.*TOKENIZERS?.*|.*MAX_TOKENS?.*|.*NUM_TOKENS?.*|.*TOKENS?_PER.*|.*KEYMAP.*"
    r"|DESKTOP_SESSION|KDE_FULL_SESSION|.*_(?:FILE|DIR|PATH)|.*_ASKPASS)$"
)
#: Flags of a command line whose value is secret. Fewer than names of variables: --image-key and --eos-token are not.
_SECRET_FLAG = regex(
    r"(?:^|_)(?:API_?KEY|ACCESS_?KEY(?:_ID)?|SECRET(?:_KEY)?|CLIENT_SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|WEBHOOK"
    r"|CONNECTION_STRING|WANDB_KEY|(?:(?:API|AUTH|ACCESS|BEARER|HF|HUB|HUGGINGFACE|WANDB|GITHUB|GITLAB|NEPTUNE|COMET)_)TOKEN)$"
    r"|^TOKEN$",
    re.IGNORECASE,
)
_URL_CREDENTIALS = regex(r"(\b[a-z][a-z0-9+.-]*://)([^\s/:@'\"]*):(?![${*<])([^\s/@'\"]+)@", re.IGNORECASE)
_SECRET_VALUE = regex(
    r"https://hooks\.slack\.com/[\w/.-]{10,}|https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/[\w/.-]{10,}"
    r"|https://[\w.-]+\.webhook\.office\.com/[\w/@.-]{10,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{15,}|\bhf_[A-Za-z0-9]{20,}|\bsk-(?=[\w-]*\d)[\w-]{20,}"
    r"|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?i:\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)(?![$<{*])(?=\S*\d|\S{12})[^\s\"'<>]{3,}"
)
_CONNECTION_STRING = regex(r"\b(password|pwd|accountkey|sharedaccesskey)\s*=\s*([^;\s]{4,})\s*(?=;|$)", re.IGNORECASE)
#: In other people's text: api_key = "...", --password X, "token": "...".
_ASSIGNMENT = regex(
    r"((?:api|access|private)[_-]?key|(?:client[_-]?)?secret(?:[_-]?key)?|passwo?r?d|passphrase"
    r"|(?:api|auth|access|bearer)[_-]?token|authorization:\s*\w+)"
    r"([\"']?\s*[:=]\s*[\"']?|\s+)([^\s\"',;{}$\\]{8,})",
    re.IGNORECASE,
)
#: In an argument that is a mapping: {api_key: abc}, {"password": "abc"}. Not a call or a look-up in a program.
_MAPPING_ENTRY = regex(
    r"[{,]\s*[\"']?([\w.-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|secret(?:[_-]?key)?|passwo?r?d|passphrase"
    r"|(?:api|auth|access|bearer)[_-]?token))[\"']?\s*:\s*[\"']?(?![\w.]+[\[(])([^\s\"',;{}$\\]+)",
    re.IGNORECASE,
)
_PLAIN_VALUE = regex(
    r"^(?:[./~$\[{<].*|(?:true|false|none|null|auto|yes|no|on|off|\d+(?:\.\d+)?))$", re.IGNORECASE | re.DOTALL
)
#: Untracked files of these names hold secrets more often than code.
_SECRET_FILE = regex(
    r"^(\.env(\..*)?|.*\.env|\.netrc|\.pgpass|\.pypirc|\.npmrc|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|p12|pfx|key)"
    r"|credentials(\.\w+)?|secrets?\.(json|ya?ml|toml|txt|ini)|service[_-]?account.*\.json|kaggle\.json)$",
    re.IGNORECASE,
)
_EXAMPLE_FILE = regex(r"example|sample|template|dist$", re.IGNORECASE)
_MIN_LENGTH = 8
_REDACTED = "***"


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable's name, or the layout of its value, says that the value is for nobody else."""
    return (bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.match(name)) or has_secret(value)


@functools.lru_cache(10_000)
def has_secret(text: str) -> bool:
    """Whether a text holds a secret that can be told by its layout alone."""
    return bool(
        _URL_CREDENTIALS.search(text) or _SECRET_VALUE.search(text) or (";" in text and _CONNECTION_STRING.search(text))
    )


def is_secret_file(name: str) -> bool:
    """Whether a file of this name, which git does not know, is kept out of copies."""
    return bool(_SECRET_FILE.match(name)) and not _EXAMPLE_FILE.search(name)


def redact(text: str, secrets: Mapping[str, str]) -> str:
    """A text without these secrets (value -> name), and without those that can be told by their layout or by the word
    before them."""
    return _ASSIGNMENT.sub(lambda match: f"{match[1]}{match[2]}{_REDACTED}", redact_page(text, secrets))


def redact_page(text: str, secrets: Mapping[str, str]) -> str:
    """The same for HTML, without looking at words: they may stand before a tag."""
    for value, name in sorted(secrets.items(), key=lambda item: -len(item[0])):
        text = text.replace(value, f"{_REDACTED}{name}{_REDACTED}")
    text = _URL_CREDENTIALS.sub(rf"\1\2:{_REDACTED}@", text)
    return _SECRET_VALUE.sub(_REDACTED, text)


def split_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment that may travel, and the names of what stays here."""
    kept = {name: value for name, value in environ.items() if not is_secret(name, value)}
    return kept, sorted(name for name, value in environ.items() if name not in kept and value)


def secret_values(environ: Mapping[str, str]) -> dict[str, str]:
    """The secrets of this environment, value -> name; values too short to be one are left out."""
    found = {}
    for name, value in environ.items():
        if is_secret(name, value):
            inside = [unquote(password) for _, _, password in _URL_CREDENTIALS.findall(value)]
            found.update({word: name for word in (value, *inside) if len(word) >= _MIN_LENGTH})
    return found


def refuse_leaks(specs: Iterable[RunSpec], environ: Mapping[str, str]) -> None:
    """Refuse runs whose arguments or settings contain a secret of this environment, or look like one."""
    secrets = secret_values(environ)
    for spec in specs:
        _refuse_leaks_of(spec, secrets)


def _refuse_leaks_of(spec: RunSpec, secrets: Mapping[str, str]) -> None:
    words = (*spec.command, *spec.args, *(spec.resume_args or ()))
    places = [("an argument", word) for word in words]
    places += [(f"the variable {name}", value) for name, value in spec.env.items()]
    places += [("an sbatch flag", word) for word in spec.flags]
    if spec.function:
        places += [(f"the parameter {name}", value) for name, value in spec.params.items() if isinstance(value, str)]
    for place, text in places:
        for value, name in secrets.items():
            if value in text:
                raise InputError(
                    f"{place} of {spec.name} contains the value of {name}, which would be written to disk",
                    hint=f"let the program read ${name} itself; {secrets_file_hint(name)}",
                )
        if has_secret(text):
            _refuse_leak(f"{place} of {spec.name} has a password or a token in it")
    for flag in _secret_flags(words):
        _refuse_leak(f"{flag} of {spec.name} looks secret")


def _refuse_leak(what: str) -> None:
    raise InputError(
        f"{what}, and would be written to disk",
        hint=f"let the program read it from a variable; {secrets_file_hint('MY_SECRET')}",
    )


def _secret_flags(words: Sequence[str]) -> Iterator[str]:
    """Flags and settings of a command line with a secret behind them: --api-key X, --password=X, logger.api_key=X."""
    for at, word in enumerate(words):
        yield from _secret_flags_in(word, words[at + 1] if word.startswith("-") and at + 1 < len(words) else "")


@functools.lru_cache(10_000)
def _secret_flags_in(word: str, following: str) -> tuple[str, ...]:
    """Kept, because thousands of runs of a sweep have the same words."""
    name, equals, value = word.partition("=")
    value = value if equals else following
    plain = name.lstrip("-+").rpartition(".")[2].replace("-", "_")
    # --token may also be one of a tokenizer; behind a name that says it, a short value is secret too.
    min_length = _MIN_LENGTH if plain.lower() == "token" else 1
    is_value = len(value) >= min_length and not _PLAIN_VALUE.match(value) and (equals or not value.startswith("-"))
    entries = (match[1] for match in _MAPPING_ENTRY.finditer(word) if not _PLAIN_VALUE.match(match[2]))
    return (*([name] if is_value and _SECRET_FLAG.search(plain) and " " not in name else ()), *entries)


def secrets_file_hint(name: str) -> str:
    """A command that puts a variable where jobs, and nobody else, can read it."""
    folder = '"${XDG_CONFIG_HOME:-$HOME/.config}/shoal"'
    return f'(umask 077; mkdir -p {folder}; echo "{name}=${name}" >> {folder}/secrets.env)'


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job inherits: no secrets, and of shoal's own variables only what both sides must agree on."""
    own = {name: value for name, value in environ.items() if not name.startswith("SHOAL_") or name in USER_VARIABLES}
    return split_environment(own)[0]
