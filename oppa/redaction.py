"""Hide secrets in command lines: passwords, tokens and keys that oppa must not store or show."""

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
"""Replaces a secret."""

_SECRET = re.compile(r"(secret|passw(or)?d|passphrase|credentials?|(api|access|private)_?key|authorization)(_|$)")
"""Matches names in lower case that always name a secret."""
_TOKEN = re.compile(r"(^|_)(token|auth|cookie|key|pwd|sig|signature)$")
"""Matches names that name a secret, unless their value shows otherwise."""
_SERVICE = re.compile(
    r"(^|_)((hf|hub|hugging_?face|auth|access|api|bearer|wandb|git(hub|lab)|session|refresh|neptune|client|user)_token)$|^token$"
)
"""Matches names of options for the token of a service; `--stop-token END` names one of a vocabulary."""
_ABOUT = re.compile(
    r"(^|_)(file|path|dir|folder|name|mode|type|policy|length|size|count|level|url|id|env|var|stdin|(cache|data|dataset|sort|text|group)_key"
    r"|(pad|eos|bos|unk|mask|cls|sep|image)_token)$"
)
"""Matches names about a secret, names of columns, and those of a tokenizer's special tokens."""
_REFERENCE = re.compile(
    r"\$\w+|\$\{.*|\$\(.*|`.*|\{.*\}|[{\[]+|<.*>|\[.*\]|[/~@].*|\.{1,2}/.*|(env|file):.*|\**"
    r"|true|false|none|null|yes|no|on|off|auto|public|anonymous|disabled|iam",
    re.IGNORECASE,
)
"""Matches values that are no secrets: variables, paths, placeholders of a template, special tokens, switches."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Matches names of environment variables."""
_SECRET_VARIABLE = re.compile(r"PASS|KEY")
"""Matches variables that hold a secret, though the same name of an option may be about anything."""
_HEXADECIMAL = re.compile(r"[0-9a-f]{40}")
"""Matches values with the shape of a tracker's key."""
_COMMIT = re.compile(r"(^|_)(commit|sha1?|hash|head|rev|revision|ref|version|digest|checksum)(_|$)")
"""Matches names of variables for the commit of a repository, which looks the same."""
_NUMBER = re.compile(r"[-+]?[0-9.]+")
_LONG = {"key": re.compile(r"(?=.*[0-9])[\w+=.-]{32,}"), "token": re.compile(r"(?=.*[0-9])[\w+=.-]{16,}")}
"""Matches values with the length of a key or a token, under names that do not decide it."""
_VALUE = r"(?P<quote>['\"]?)(?P<value>(?:Bearer |Basic )?(?:<[^>\s]*>|[^\s'\",;&|]+))"
_ASSIGNED = re.compile(rf"(?<![\w.-])(?<!\$\{{)(?<!\$\{{\{{)(?P<name>-{{0,2}}[A-Za-z][\w.-]*)(?P<between>\s*=\s*|['\"]?:\s*(?!//)){_VALUE}")
_SEPARATE = re.compile(rf"(?<![\w.-])(?P<name>--?[A-Za-z][\w.-]*)(?P<between>\s+)(?!-){_VALUE}")
_SHAPES = re.compile(
    r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # the login of a URL
    r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-(?:proj-|ant-\w{1,12}-)?[A-Za-z0-9_]{20,}|gh[opsru]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[a-z]-[\w-]{10,}|AIza[\w-]{35}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
"""Matches secrets by their shape: logins in URLs, and keys of well-known services."""


def redacted(words: Sequence[str]) -> list[str]:
    """Return a command line without its secrets.

    A secret is the value of a variable or an option that is named like one, such as `WANDB_API_KEY=...` or `--password ...`. It is also the
    login of a URL, or a key with the shape of a well-known service. A reference to a variable, such as `$WANDB_API_KEY`, is no secret.
    """
    return list(_redacted(words))


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable or an option of this name holds a secret in this value."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[.\-\s]+", "_", name.lstrip("-")).lower().rstrip("_0123456789")
    if _ABOUT.search(words) or _REFERENCE.fullmatch(value):
        return False
    if _SECRET.search(words) or (_VARIABLE.fullmatch(name) and _is_secret_variable(name, words, value)):
        return True
    if (found := _TOKEN.search(words)) is None or _NUMBER.fullmatch(value):
        return False
    kind = found[2]
    is_decided = kind not in _LONG or (kind == "token" and (name.isupper() or _SERVICE.search(words)))
    return bool(is_decided or _LONG[kind].fullmatch(value))


def _is_secret_variable(name: str, words: str, value: str) -> bool:
    """Return whether a variable of the environment holds a secret that an option of the same name would not."""
    if _SECRET_VARIABLE.fullmatch(name):
        return _NUMBER.fullmatch(value) is None
    return _HEXADECIMAL.fullmatch(value) is not None and _COMMIT.search(words) is None


def _redacted(words: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in words:
        if before.startswith("-") and "=" not in before and not word.startswith("-") and is_secret(before, word):
            yield HIDDEN
        else:
            yield _SHAPES.sub(HIDDEN, _SEPARATE.sub(_hidden, _ASSIGNED.sub(_hidden, word)))
        before = word


def _hidden(match: "re.Match[str]") -> str:
    if not is_secret(match["name"], match["value"]):
        return match[0]
    return f"{match['name']}{match['between']}{match['quote']}{HIDDEN}"
