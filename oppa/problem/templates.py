"""Define the placeholders of a launch line's templates, and check templates before any trial.

A template is text with placeholders, such as `{micro_batch}`; `{{` and `}}` are literal braces.
"""

import json
import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence

from oppa.errors import JobError, nearest
from oppa.plain_text import clipped
from oppa.problem.bounds import LARGEST
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import PARAMETERS, Value, is_name, kinds
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.redaction import HIDDEN, redacted

DERIVED = ("num_microbatches", "total_microbatches", "batch_per_rank", "devices", "dp_shard_size")
TOKENS = ("tokens_per_microbatch", "tokens_per_step")
"""Tokens of a micro-batch, and of a global batch."""
BUCKET = "zero_bucket_elements"
"""Elements of a gradient in `zero_bucket_mb`, in the precision of the training."""
IMPLY_MICRO_BATCH = {"num_microbatches", "total_microbatches", "tokens_per_microbatch"}
ABOUT = {
    Cluster: ("hosts", "devices_per_host"),
    Model: ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "experts", "experts_per_token"),
    Training: ("precision", "learning_rate", "seed"),
}
GIVEN = ("steps", "folder", "cache_folder")
"""Optimizer steps of the trial, its folder, and the folder of files that all trials of the study share."""
RESERVED = (*DERIVED, BUCKET, *TOKENS, *(name for names in ABOUT.values() for name in names), *GIVEN)
"""Placeholders that are no parameters."""
NAMES = (*PARAMETERS, *RESERVED)
_FILE_NAME = re.compile("[A-Za-z_][A-Za-z0-9_-]{0,99}")


def names_in(template: str) -> Iterator[str]:
    """Return the placeholders of a template; `{{` and `}}` are literal braces."""
    return (name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


def without_escapes(template: str) -> str:
    """Return a template with single braces in place of the doubled ones, which are literal."""
    return template.replace("{{", "{").replace("}}", "}")


def literal(text: str) -> str:
    """Return text as a template without placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def check_template(template: str, known: Collection[str] | None = None) -> None:
    """Raise JobError if a template is malformed, or has a placeholder that is not among the known ones; None: all are known."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise JobError(f"`{clipped(template)}`: {error}", hint="write {{ and }} for braces") from None
    if "\0" in template:
        raise JobError(f"`{clipped(template)}` has a NUL character, which no program receives", hint="remove it")
    for _, name, form, conversion in parts:
        if name and is_name(name) and form and "," in form:
            hint = f"write `{{{name}=PRESENT:{clipped(form)}}}`, with its present value among its choices; write {{{{ and }}}} for braces"
            raise JobError(f"`{clipped(template)}` states no present value of `{name}`", hint=hint)
        if name is not None and ((known is not None and name not in known) or not name or form or conversion):
            raise JobError(f"{_where(template, name)}`{{{name}}}` is not a known placeholder", hint=_placeholders(name, known or NAMES))


def _where(template: str, name: str) -> str:
    """Return the template in front of a complaint about one of its placeholders; empty if it is nothing else."""
    return "" if template == f"{{{name}}}" else f"`{clipped(template)}`: "


def _placeholders(name: str, known: Collection[str]) -> str:
    """Return what could stand in place of an unknown placeholder: a known one that is close, else a knob of the user's own."""
    if not is_name(name):
        return "name a parameter, such as `{micro_batch}`; write {{ and }} for braces"
    close = nearest(name, known)
    meant = f"{close} Or " if close.startswith("did you mean") else "name a parameter, such as `{micro_batch}` or `{tp}`, or "
    return f"{meant}declare a knob of your own by its present value and its choices: `{{{name}=4:2,4,8}}`; write {{{{ and }}}} for braces"


def check_secrets(words: Sequence[str]) -> None:
    """Raise JobError for a secret: oppa stores the launch line in studies, tables, reports and scripts."""
    for number, (word, safe) in enumerate(zip(words, redacted(words), strict=True)):
        if word != safe:
            option = f"{words[number - 1]} " if safe == HIDDEN else ""
            hint = "set it as an environment variable, which trials inherit and oppa does not store; "
            hint += """a program that reads no variable can be started by `sh -c 'exec PROGRAM --option "$NAME"'`"""
            raise JobError(f"the launch line has a secret, `{option}{safe}`, which oppa would store", hint=hint)


def check_file(name: str, keys: Mapping[str, object]) -> None:
    """Raise JobError for a file that no launch line can name, or whose keys have values that JSON lacks, such as dates."""
    if name in NAMES or not _FILE_NAME.fullmatch(name):
        raise JobError(f"`[command.files]`: `{clipped(name)}` cannot be the name of a file", hint="use letters, digits and `_`")
    for key, choice in keys.items():
        try:
            json.dumps(choice, allow_nan=False)
        except (TypeError, ValueError):
            message = f"`[command.files.{name}]`: `{clipped(key)}` has a value that is no text, finite number, true or false"
            raise JobError(message, hint="write a date in quotes") from None


def check_batches(template: str) -> None:
    """Raise JobError if `batches_per_step` is neither a positive number nor one placeholder that counts."""
    check_template(template, NAMES)
    counts = {f"{{{name}}}" for name in (*DERIVED, *(name for name, kind in kinds().items() if kind is int and name != "zero_stage"))}
    if template not in counts and not (re.fullmatch("[0-9]{1,19}", template) and 0 < int(template) <= LARGEST):
        hint = f'write a number of at most {LARGEST}, or `batches_per_step = "{{num_microbatches}}"`'
        raise JobError(
            f"`[command.steps]`: `batches_per_step = {clipped(template)}` is neither a positive number nor one placeholder", hint=hint
        )


def check_pattern(key: str, pattern: str) -> None:
    """Raise JobError if a key of `[command.steps]` is not a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        hint = "correct the pattern; a literal bracket, brace or parenthesis has a backslash before it"
        raise JobError(f"`[command.steps]`: `{key} = '{clipped(pattern)}'` is not a regular expression: {error}", hint=hint) from None


def spelled(value: Value) -> str:
    """Return a value as programs read it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
