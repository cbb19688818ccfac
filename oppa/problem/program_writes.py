"""Find in a program's source what it writes although its launch line names no path: defaults of options, and paths in the code.

Only the program's own file is read, not what it imports. It is never run.
"""

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from oppa.errors import InputError
from oppa.problem.bounded_text import parse_python, read_text
from oppa.problem.program_options import OptionDefault, global_options, program_options
from oppa.problem.program_settings import CodeSettings, code_settings
from oppa.problem.source_names import Beginning, SourceNames, dotted
from oppa.problem.stated_words import folder_of, program_at
from oppa.problem.templates import without_escapes
from oppa.regular_file import is_file

_CONFIGURATOR = re.compile(r"exec\(\s*open\([^)]*configurator")
"""A statement by which each global variable is an option, as in nanoGPT."""
_OF_TRAINERS = (
    "TrainingArguments",
    "Seq2SeqTrainingArguments",
    *(f"{name}Config" for name in ("SFT", "DPO", "GRPO", "KTO", "ORPO", "CPO", "Reward")),
)
"""Arguments of trainers of Transformers and TRL, which save and log into their folder."""
_WRITERS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "torch.save": (1, ("f",)),
    "np.save": (0, ("file",)),
    "np.savez": (0, ("file",)),
    "save_file": (1, ("filename",)),
    "save_pretrained": (0, ("save_directory",)),
    "save_model": (0, ("output_dir",)),
    "save_checkpoint": (0, ("save_dir", "filepath")),
    "save_state": (0, ("output_dir",)),
    "export_chrome_trace": (0, ("path",)),
    "tensorboard_trace_handler": (0, ("dir_name",)),
    "savefig": (0, ("fname",)),
    "to_csv": (0, ("path_or_buf",)),
    "FileHandler": (0, ("filename",)),
    "basicConfig": (99, ("filename",)),
    "shutil.copy": (1, ("dst",)),
    "shutil.copy2": (1, ("dst",)),
    "shutil.copyfile": (1, ("dst",)),
    "shutil.copytree": (1, ("dst",)),
    "shutil.move": (1, ("dst",)),
    "SummaryWriter": (0, ("log_dir", "logdir")),
    "CSVLogger": (0, ("save_dir",)),
    "TensorBoardLogger": (0, ("save_dir",)),
    "ModelCheckpoint": (0, ("dirpath",)),
    "rmtree": (0, ("path",)),
    **dict.fromkeys(_OF_TRAINERS, (0, ("output_dir", "logging_dir"))),
    "Accelerator": (99, ("project_dir", "logging_dir")),
    "ProjectConfiguration": (0, ("project_dir", "logging_dir")),
    "Trainer": (99, ("default_root_dir",)),
    "WandbLogger": (99, ("save_dir",)),
    "wandb.init": (99, ("dir",)),
}
"""Calls that write: the position of the path among the arguments, and its names."""
_INPUTS = {"data", "dataset", "datasets", "input", "inputs"}
"""Folders that a program makes for what it reads."""
_UNWRITTEN = ("/dev/", "/proc/")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CodePath:
    """Describes a path in a program's code that the program writes."""

    line: int
    path: str
    """The text that it begins with; empty if only a run knows it."""
    names: tuple[str, ...]
    """Attributes, keys and variables on which it depends."""

    @classmethod
    def of(cls, call: ast.Call, found: Beginning) -> "CodePath":
        """Return the path of a call that writes."""
        return cls(line=call.lineno, path=next(iter(found.texts), ""), names=(*found.members, *found.unseen))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramWrites:
    """Holds what the source of a program shows."""

    program: str = ""
    """The program as the line names it."""
    defaults: tuple[OptionDefault, ...] = ()
    paths: tuple[CodePath, ...] = ()
    unseen: tuple[CodePath, ...] = ()
    """Paths that only a run knows, and that no option of the source states."""
    settings: tuple[CodeSettings, ...] = ()


def program_writes(argv: Sequence[str]) -> ProgramWrites:
    """Return what the source of a launch line's program shows; nothing if there is no source here that can be read."""
    start = program_at(argv)
    if start < 0 or start >= len(argv):
        return ProgramWrites()
    word = without_escapes(argv[start])
    is_module = start > 0 and argv[start - 1] in ("-m", "--module")
    path = folder_of(argv) / Path(f"{word.replace('.', '/')}.py" if is_module else word)
    if path.suffix != ".py" or not is_file(path):
        return ProgramWrites()
    try:
        source = read_text(path)
        tree = parse_python(source, hint="")
    except InputError:
        return ProgramWrites()
    options = global_options(tree) if _CONFIGURATOR.search(source) else program_options(tree, argv[start + 1 :])
    names = SourceNames(tree, options.spelled, options.parsed, options.variables)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and not names.defines(node)]
    found = [(call, names.beginning(argument)) for call in calls if (argument := _written(call)) is not None]
    known = {name for default in options.defaults for name in default.names}
    late = {options.spelled[name]: text for _, each in found for name in each.options if name in options.spelled for text in each.texts}
    own = [CodePath.of(call, each) for call, each in found if not any(each.options) and not (_makes_folder(call) and _is_input(each))]
    settings = code_settings(tree, names, path, folder=folder_of(argv), words=argv[start + 1 :])
    return ProgramWrites(
        program=argv[start],
        defaults=(*options.defaults, *(OptionDefault(names=(name,), value=text) for name, text in late.items() if name not in known)),
        paths=tuple(each for each in own if each.path and not each.path.startswith(_UNWRITTEN)),
        unseen=tuple(each for each in own if each.names and not each.path),
        settings=tuple({each.path: each for each in settings}.values()),
    )


def _written(call: ast.Call) -> ast.expr | None:
    """Return the path that a call writes; None if it writes none."""
    name = dotted(call)
    stem = name.rpartition(".")[2]
    if stem == "open":
        is_function = isinstance(call.func, ast.Name)
        mode = _argument(call, int(is_function), ("mode",))
        text = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else ""
        is_writing = set(text) & set("wax+") and set(text) <= set("rwaxbt+")
        return None if not is_writing else _argument(call, 0, ("file",)) if is_function else _owner(call)
    if _makes_folder(call) and name.startswith("os."):
        return _argument(call, 0, ("name", "path"))
    if _makes_folder(call) or stem in ("write_text", "write_bytes"):
        return _owner(call)
    known = _WRITERS.get(name) or _WRITERS.get(stem)
    if known is None:
        return None
    argument = _argument(call, *known)
    is_default = stem == "SummaryWriter" and argument is None and not call.keywords
    return ast.Constant(value="runs") if is_default else argument


def _makes_folder(call: ast.Call) -> bool:
    """Return whether a call makes a folder."""
    name = dotted(call)
    return name in ("os.makedirs", "os.mkdir") or (name.rpartition(".")[2] == "mkdir" and isinstance(call.func, ast.Attribute))


def _is_input(folder: Beginning) -> bool:
    """Return whether a folder is not seen, or named like one that is read."""
    return any(_INPUTS & set(PurePath(text).parts) for text in folder.texts) or not folder.texts


def _owner(call: ast.Call) -> ast.expr | None:
    """Return the object whose method is called; None for a function."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _argument(call: ast.Call, position: int, names: Sequence[str]) -> ast.expr | None:
    """Return an argument of a call by its position or its names."""
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    named = next((each.value for each in call.keywords if each.arg in names), None)
    return call.args[position] if position < len(call.args) else named
