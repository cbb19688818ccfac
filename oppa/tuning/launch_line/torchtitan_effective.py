"""Hold the effective configuration of a line of torchtitan: the values of its file or function, with the options of the line over them."""

from collections.abc import Mapping
from typing import Any

from oppa.errors import InputError
from oppa.problem.declaration import spell
from oppa.problem.file_keys import at
from oppa.tuning.launch_line.meaning import LineConflict
from oppa.tuning.launch_line.options import Options
from oppa.tuning.launch_line.templates_of import templates
from oppa.tuning.launch_line.torchtitan_tokens import TOKENS

OLDER = {
    "parallelism.data_parallel_shard_degree": "training.data_parallel_shard_degree",
    "parallelism.data_parallel_replicate_degree": "training.data_parallel_replicate_degree",
    "parallelism.tensor_parallel_degree": "training.tensor_parallel_degree",
    "parallelism.pipeline_parallel_degree": "experimental.pipeline_parallel_degree",
    "parallelism.context_parallel_degree": "experimental.context_parallel_degree",
    "training.local_batch_size": "training.batch_size",
    "compile.enable": "training.compile",
}
"""Keys of earlier releases."""
LOCAL, LENGTH, GLOBAL = "training.local_batch_size", "training.seq_len", "training.global_batch_size"
DEFAULTS = {LOCAL: 8, LENGTH: 2048, GLOBAL: -1}
"""Sizes that torchtitan has if nothing states them; -1 is one step without accumulation."""


class EffectiveConfiguration:
    """Holds the effective configuration: the file's values, with the line's over them."""

    def __init__(self, options: Options, values: Mapping[str, Any], file: str, *, in_tokens: bool = False) -> None:
        self._options, self._values, self._file, self.in_tokens = options, values, file, in_tokens

    @property
    def is_known(self) -> bool:
        """Return whether the configuration under the line's options is known."""
        return bool(self._values)

    def get(self, key: str, usual: Any) -> Any:
        """Return the value of a key."""
        found, origin = self.stated(key)
        return found if origin else usual

    def stated(self, key: str) -> tuple[Any, str]:
        """Return a value with its origin; an empty origin if nothing states it. Batches are counted in sequences."""
        if self.in_tokens and key in TOKENS:
            return self._in_sequences(key)
        return self._written(key)

    def _in_sequences(self, key: str) -> tuple[Any, str]:
        """Return a size that a commit after 0.3 states in tokens; raises InputError if it holds no whole number of sequences."""
        found, origin = self._written(TOKENS[key])
        if key == LENGTH:
            return (found, origin) if origin else self._written(key)
        usual = int(at(self._values, LENGTH) or DEFAULTS[LENGTH])
        if not origin and key == LOCAL and self._values:  # a function states tokens, which stay if the length changes
            found, origin = int(at(self._values, key) or DEFAULTS[LOCAL]) * usual, self._file
        length, stated = self._in_sequences(LENGTH)
        if not origin or found == DEFAULTS[GLOBAL] or not stated:
            return None, ""
        if not {type(found), type(length)} <= {int} or found % length:
            message = f"`{TOKENS[key]} = {spell(found)}` ({origin}) is not a multiple of the {spell(length)} tokens of a sequence"
            raise InputError(message, hint=f"state whole sequences: a multiple of `{TOKENS[LENGTH]}`")
        return found // length, origin

    def _written(self, key: str) -> tuple[Any, str]:
        """Return a value as the line or the file has it, with its origin."""
        for name in (key, OLDER.get(key, "")):
            table, _, last = name.rpartition(".")
            if name and f"{table}.no-{last}" in self._options:
                return False, self._options.origin(f"{table}.no-{last}")
            if name and (option := self._options.get(name)):
                return _typed(option.text), option.origin
        for name in (key, OLDER.get(key, "")):
            if name and (found := at(self._values, name)) is not None:
                return found, self._file
        return None, ""

    def words(self, key: str) -> list[str]:
        """Return the words by which the line states a key, and the others of its table."""
        table = key.rpartition(".")[0]
        return [word for option in self._options.all if option.name.startswith(f"{table}.") for word in templates(option.words)]

    def spelled(self, key: str) -> str:
        """Return the option of a key as the file's release spells it: by its older name if only that is stated."""
        older = OLDER.get(key, "")
        is_older = bool(older) and at(self._values, key) is None and at(self._values, older) is not None
        return f"--{older if is_older else key}"

    def option(self, key: str) -> str:
        """Return the option that states a key in the release of the line, without dashes."""
        return TOKENS.get(key, key) if self.in_tokens else key

    def number(self, key: str, usual: int) -> int:
        """Return the whole number of a key; raises InputError for anything else."""
        found = self.get(key, usual)
        if type(found) is not int:
            raise InputError(f"`{key} = {spell(found)}` ({self.stated(key)[1]}) is not a whole number", hint="write the number itself")
        return found

    def differences(self) -> list[LineConflict]:
        """Return the options of the line that state something else than the file."""
        found = []
        for option in self._options.all:
            before = at(self._values, option.name)
            if before is not None and before != _typed(option.text):
                found.append(
                    LineConflict(
                        about=option.name, taken=f"{option.text or 'true'} ({option.origin})", other=f"{spell(before)} ({self._file})"
                    )
                )
        return found


def _typed(text: str) -> Any:
    if text in ("", "true", "True", "false", "False"):
        return text in ("", "true", "True")
    try:
        return int(text)
    except ValueError:
        return text
