"""Megatron-LM (core 0.16): the options of `pretrain_gpt.py`, in a file that a shell reads.

The size of a bucket counts fp32 elements. Without overlap there is a single bucket.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from oppa.errors import InputError
from oppa.pipeline.from_configuration import stages_of
from oppa.pipeline.stage_layout import EVEN, letters, recognised
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.problem.space import Value
from oppa.tuning.formats import launch
from oppa.tuning.formats.format import Files, Reading, elements, inexpressible, is_chosen, is_knob, mebibytes, only, require_equal_stages

NAME = "Megatron-LM"
ARGUMENTS = "megatron_args.sh"
FILES = (ARGUMENTS, launch.SCRIPT)
EXPRESSES = [
    "pp",
    "ep",
    "zero_stage",
    "schedule",
    "model_chunks",
    "overlap_p2p",
    "recompute",
    "dp_bucket_mb",
    "overlap_zero_comm",
    "overlap_zero_allgather",
    "stage_layout",
]
STAGES = "--pipeline-model-parallel-layout"
GRADIENT_BYTES = 4
"""Megatron-LM accumulates gradients in fp32, also where it computes in bf16."""

NUMBERS = {
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--expert-model-parallel-size": "ep",
    "--num-virtual-stages-per-pipeline-rank": "model_chunks",
    "--micro-batch-size": "micro_batch",
    "--global-batch-size": "global_batch",
}
SWITCHES = {"--overlap-grad-reduce": "overlap_zero_comm", "--overlap-param-gather": "overlap_zero_allgather"}
KNOWN = {
    *NUMBERS,
    *SWITCHES,
    *["--use-distributed-optimizer", "--no-overlap-p2p-communication", "--ddp-bucket-size", "--num-layers-per-virtual-pipeline-stage"],
    STAGES,
    *["--recompute-granularity", "--recompute-activations", "--recompute-method", "--recompute-num-layers"],
}
MATTER = re.compile(r"--(.*parallel.*|.*overlap.*|recompute.*|.*fsdp.*|.*offload.*|fp8.*|fp16|.*batch-size.*|.*data-parallel.*|.*layout.*)")
"""Options that change the speed or the memory of a run, among those that no parameter covers."""

_FILE = """\
# Made by oppa: {name} with {id}. A shell reads it: pretrain_gpt.py $ARGUMENTS
ARGUMENTS="
{lines}
"
"""


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError for ZeRO 2 and 3, other schedules, and models that pretrain_gpt.py does not support."""
    check(problem, configuration)
    options = [*parallel_options(problem, configuration), *model_options(problem.model), *training_options(problem)]
    text = _FILE.format(name=problem.name, id=configuration.id, lines="\n".join(options))
    start = f'exec {launch.torchrun(problem)} "${{MEGATRON:?a checkout of Megatron-LM}}/pretrain_gpt.py" $ARGUMENTS "$@"'
    body = f'export CUDA_DEVICE_MAX_CONNECTIONS="${{CUDA_DEVICE_MAX_CONNECTIONS:-1}}"\n. "$here/{ARGUMENTS}"\n{start}'
    usage = "[OPTION]...        with MEGATRON=, a checkout of Megatron-LM; on mock data unless options name some"
    return {ARGUMENTS: text, launch.SCRIPT: launch.script(problem, configuration, usage=usage, body=body)}


def check(problem: Problem, configuration: Configuration, *, target: str = NAME) -> None:
    """Raise InputError for a value that Megatron-LM has no option for."""
    c = configuration
    if c.stage_layout == EVEN:
        require_equal_stages(target, problem, c)
    if c.schedule not in ("1f1b", "interleaved"):
        raise inexpressible(target, c, "schedule", hint='it has "1f1b" and "interleaved"')
    if c.zero_stage > 1:
        raise inexpressible(target, c, "zero_stage", hint="its distributed optimizer is ZeRO 1")
    if c.schedule == "interleaved" and c.pp == 2 and not c.overlap_p2p:
        hint = "without the overlap two ranks would exchange several messages at once; it asserts more than two stages"
        raise inexpressible(target, c, "overlap_p2p", beside="pp", hint=hint)
    if c.model_chunks > 1 and c.schedule != "interleaved":
        raise inexpressible(target, c, "model_chunks", beside="schedule", hint="only the interleaved schedule has several")
    if is_chosen(problem, c, "dp_bucket_mb") and not c.overlap_zero_comm:
        raise inexpressible(target, c, "dp_bucket_mb", beside="overlap_zero_comm", hint="without the overlap it has one bucket")
    if c.overlap_zero_allgather and not (c.overlap_zero_comm and c.zero_stage):
        hint = "it needs the distributed optimizer and the overlap of the reduction"
        raise inexpressible(target, c, "overlap_zero_allgather", beside="overlap_zero_comm", hint=hint)


def needs_sequence_parallel(problem: Problem, configuration: Configuration) -> bool:
    """Return whether sequence parallelism is required: Megatron-core refuses experts with tensor parallelism alone (MoELayer.forward)."""
    return problem.model.experts > 1 and configuration.tp > 1


def parallel_options(problem: Problem, configuration: Configuration) -> list[str]:
    """Return the options that stand for a parameter."""
    c = configuration
    options = [f"{option} {getattr(c, name)}" for option, name in NUMBERS.items() if name not in ("ep", "model_chunks")]
    options += [f"--expert-model-parallel-size {c.ep}"] if c.ep > 1 else []
    options += ["--sequence-parallel"] if needs_sequence_parallel(problem, c) else []
    options += ["--use-distributed-optimizer"] if c.zero_stage else []
    if c.stage_layout != EVEN:
        options += [f"{STAGES} {letters(stages_of(c, problem.model))}"]  # it implies how many there are; a shell would expand `t*3`
    if c.schedule == "interleaved":
        options += [f"--num-virtual-stages-per-pipeline-rank {c.model_chunks}"] if c.stage_layout == EVEN else []
        options += [] if c.overlap_p2p else ["--no-overlap-p2p-communication"]
    if c.recompute != "none":
        options += [f"--recompute-granularity {c.recompute}"]
        options += ["--recompute-method uniform --recompute-num-layers 1"] if c.recompute == "full" else []
    options += [option for option, name in SWITCHES.items() if getattr(c, name)]
    if is_knob(problem, "dp_bucket_mb") and c.overlap_zero_comm:
        options += [f"--ddp-bucket-size {bucket_elements(c.dp_bucket_mb)}"]
    return options


def model_options(model: Model) -> list[str]:
    """Return the options that describe the model; raises InputError if it is no causal language model."""
    if not model.causal or model.patch:
        raise InputError(f"Megatron-LM's pretrain_gpt.py cannot train `{model.name}`", hint="it trains causal language models")
    sizes = {"num-layers": model.layers, "hidden-size": model.hidden, "ffn-hidden-size": model.ffn, "num-attention-heads": model.heads}
    options = [f"--{name} {size}" for name, size in sizes.items()]
    options += [f"--seq-length {model.seq_len}", f"--max-position-embeddings {model.learned_positions or model.seq_len}"]
    options += [f"--position-embedding-type {'learned_absolute' if model.learned_positions else 'rope'}"]
    options += [f"--normalization {'RMSNorm' if model.norm == 'rms' else 'LayerNorm'}"]
    options += [f"--group-query-attention --num-query-groups {model.kv_heads}"] if model.kv_heads < model.heads else []
    options += ["--swiglu"] if model.gated else []
    options += [] if model.biases else ["--disable-bias-linear"]
    options += ["--add-qkv-bias"] if model.qkv_bias else []
    options += [] if model.tied else ["--untie-embeddings-and-output-weights"]
    options += [f"--num-experts {model.experts} --moe-router-topk {model.experts_per_token}"] if model.experts > 1 else []
    return options


def training_options(problem: Problem) -> list[str]:
    """Return the options of the run: precision, learning rate, and mock data. A later option overrides an earlier one."""
    training = problem.training
    half = ["--bf16"] if training.precision == "bf16" else []
    vocab = problem.model.vocab - 1  # the tokenizer adds one for the end of a document
    data = ["--train-iters 100", "--mock-data", "--tokenizer-type NullTokenizer", f"--vocab-size {vocab}"]
    sgd = ["--optimizer sgd", f"--sgd-momentum {training.momentum:g}"]
    optimizer = sgd if training.optimizer == "sgd" else [f"--adam-beta2 {training.adam_beta2:g}"]
    return [
        *half,
        f"--lr {training.learning_rate:g}",
        *optimizer,
        f"--clip-grad {training.gradient_clipping:g}",
        f"--seed {training.seed}",
        *data,
    ]


def parse(problem: Problem, files: Files) -> Reading:
    """Read Megatron-LM's options from a shell script or a list; the script's own variables are filled in."""
    options = options_of(files)
    settings: dict[str, Value] = {name: _number(option, options[option]) for option, name in NUMBERS.items() if option in options}
    settings |= {name: option in options for option, name in SWITCHES.items()}
    settings["zero_stage"] = int("--use-distributed-optimizer" in options)
    if "--num-layers-per-virtual-pipeline-stage" in options:
        layers = _number("--num-layers-per-virtual-pipeline-stage", options["--num-layers-per-virtual-pipeline-stage"])
        settings["model_chunks"] = problem.model.layers // (int(settings.get("pp", 1)) * layers)
    if STAGES in options:
        settings |= layout_of(problem, " ".join(options[STAGES]), int(settings.get("pp", 1)))
    if int(settings.get("model_chunks", 1)) > 1:
        settings |= {"schedule": "interleaved", "overlap_p2p": "--no-overlap-p2p-communication" not in options}
    selective = ["selective"] if "--recompute-activations" in options else ["none"]
    settings["recompute"] = options.get("--recompute-granularity", selective)[0]
    if "--ddp-bucket-size" in options:
        settings["dp_bucket_mb"] = mebibytes(_number("--ddp-bucket-size", options["--ddp-bucket-size"]), size=GRADIENT_BYTES)
    ignored = [" ".join((option, *values)) for option, values in options.items() if option not in KNOWN and MATTER.fullmatch(option)]
    return Reading(settings=settings, ignored=tuple(ignored))


def options_of(files: Files) -> dict[str, list[str]]:
    """Return every option of a shell script or a list of options, with its values; raises InputError if it cannot be read."""
    return _options(_text(files))


def program_of(files: Files) -> str:
    """Return the program that a script starts: the last word that ends in `.py`; empty if there is none."""
    return next((word for word in reversed(_words(_text(files))) if word.endswith(".py")), "")


def bucket_elements(mebibytes: float) -> int:
    """Return how many elements Megatron-LM counts in a bucket of gradients."""
    return elements(mebibytes, size=GRADIENT_BYTES)


def _text(files: Files) -> str:
    return only(files, ARGUMENTS) if ARGUMENTS in files else only(files, ".sh", ".txt", ".args")


def layout_of(problem: Problem, text: str, pp: int) -> dict[str, Value]:
    """Return the parameters that a layout of stages sets."""
    stage_layout, chunks = recognised(text, pp, problem.model.part_flops)
    return {"stage_layout": stage_layout, "model_chunks": chunks}


def _options(text: str) -> dict[str, list[str]]:
    """Return every option of a script with its values, shell variables filled in; a later one overrides an earlier one."""
    words = _words(text)
    variables: dict[str, str] = {}
    for name, _, value in (word.partition("=") for word in words if re.match(r"[A-Za-z_]\w*=[^(]", word)):
        variables[name] = _filled(value, variables)  # in order, as a shell does: `TP=${TP:-2}` is 2
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in " ".join(_filled(word, variables) for word in words).split():
        if word.startswith("--"):
            option, _, value = word.partition("=")
            found[option] = values = [value] if value else []
        elif (opened := re.match(r"[A-Za-z_]\w*=\(?(--.*)", word)) is not None:
            found[opened[1]] = values = []
        elif word := word.rstrip(")"):
            values.append(word)
    return found


def _words(text: str) -> list[str]:
    """Return the words of a shell script, without the separators of commands."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return [word for word in lexer if word.strip(";&|")]
    except ValueError as error:
        raise InputError(f"the options cannot be read: {error}", hint="give a shell script, or the options alone") from None


def _filled(word: str, variables: Mapping[str, str]) -> str:
    """Return a word with its variables filled in, if the script sets them itself or gives a default, `${TP:-2}`."""

    def value(match: re.Match[str]) -> str:
        name, default = match["braced"] or match["plain"], match["default"]
        return variables.get(name, default if default is not None else match[0])

    return re.sub(r"\$(?:\{(?P<braced>\w+)(?::?-(?P<default>[^}]*))?\}|(?P<plain>\w+))", value, word)


def _number(option: str, values: Sequence[str]) -> int:
    text = values[0] if values else ""
    if not text.isdigit():
        raise InputError(f"`{option} {text}` is no number", hint="write the number there, or set the variable in the same file")
    return int(text)
