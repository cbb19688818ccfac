"""Make a launch line for trials of Megatron-LM from a script's own options, and read the model that they state.

Options that stand for a parameter become `[command.arguments]`. The options of torchrun, and those for a run's length and its output, are
replaced by those that a trial needs. Options that state another model or precision than the job follow the job. All others are kept.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Value
from oppa.problem.declaration import spell
from oppa.problem.model import OF_LATENTS, OF_WINDOWS, Model
from oppa.problem.space_file import divisors
from oppa.problem.templates import literal
from oppa.tuning.formats import megatron, megatron_model
from oppa.tuning.launch_line.templates_of import one_option_a_line

Options = Mapping[str, Sequence[str]]

PROGRAM, _BERT = "pretrain_gpt.py", "pretrain_bert.py"
DIMENSIONS = {
    "--num-layers": "layers",
    "--hidden-size": "hidden",
    "--ffn-hidden-size": "ffn",
    "--num-attention-heads": "heads",
    "--num-query-groups": "kv_heads",
    "--seq-length": "seq_len",
    "--num-experts": "experts",
    "--moe-router-topk": "experts_per_token",
}
OF_WINDOW = [megatron_model.WINDOW, megatron_model.SKIPPED]
CONTEXT = "--context-parallel-size"
"""Option of a degree whose words the search space adds to the launch line of a job that has it as a parameter."""
STATED_BY = {
    "hidden": ["--ffn-hidden-size", megatron_model.HEAD],
    "ffn": ["--ffn-hidden-size"],
    "heads": ["--group-query-attention", "--num-query-groups", megatron_model.HEAD],
    "kv_heads": ["--group-query-attention", "--num-query-groups"],
    "seq_len": ["--max-position-embeddings"],
    "vocab": ["--vocab-size"],
    "gated": ["--swiglu"],
    "norm": ["--normalization"],
    "biases": ["--disable-bias-linear"],
    "qkv_bias": ["--add-qkv-bias"],
    "tied": ["--untie-embeddings-and-output-weights"],
    "learned_positions": ["--position-embedding-type", "--max-position-embeddings", "--use-rotary-position-embeddings"],
    "experts": ["--num-experts", "--moe-router-topk"],
    "experts_per_token": ["--num-experts", "--moe-router-topk"],
    "layers": [megatron_model.LAYERS, megatron_model.SKIPPED],
    **dict.fromkeys(OF_WINDOWS, OF_WINDOW),
    "head_width": [megatron_model.HEAD, *megatron_model.WIDTHS],
    "expert_ffn": [megatron_model.EXPERT],
    "shared_expert_ffn": [megatron_model.SHARED],
    "dense_layers": [megatron_model.LAYERS],
    **{name: [megatron_model.HEAD, *megatron_model.OF_LATENTS] for name in OF_LATENTS},
}
"""The options that change if the job has another value. Options of other dimensions are placeholders, which follow the job anyway."""
_IN_A_TRIAL = ["--global-batch-size", "{global_batch}", "--train-iters", "{steps}", "--log-interval", "1", "--eval-iters", "0"]
_REPLACED = re.compile(
    r"--(nproc[_-]per[_-]node|nnodes|node[_-]rank|master[_-](addr|port)|rdzv[_-].*|standalone|max[_-]restarts|local[_-]ranks[_-]filter"
    r"|train-(iters|samples)|log-interval|eval-(iters|interval)|save|save-interval|load|exit-(interval|duration-in-mins)|tensorboard-.*|wandb-.*"
    r"|recompute-.*|rampup-batch-size|context-parallel-size)"
)
_NO_VALUE = re.compile(r"torchrun|python[0-9.]*|srun|exec|export|cd|.*\.py|[A-Za-z_]\w*=.*|.*\[[@*]\].*|[&|;<>].*")
"""Words of a script that are not values of the option before them."""
BUCKETS_MB = (153, *(2**power for power in range(13)))
"""The sizes of search_spaces/megatron.toml, in MiB; the first is Megatron-LM's own up to 40 replicas."""


def model_facts(options: Options, program: str = "") -> tuple[dict[str, int], dict[str, Value], tuple[str, ...]]:
    """Return the dimensions that options state, what kind of model they state, and the options that cannot be read.

    Options that are left out have the defaults of megatron/training/arguments.py. Without layers, width and heads, no kind is returned.
    """
    found: dict[str, int] = {}
    unread = []
    for option, name in DIMENSIONS.items():
        words = options.get(option)
        if words is None or (name == "kv_heads" and "--group-query-attention" not in options):
            continue
        if words and (size := whole_number(words[0])) is not None:
            found[name] = size
        else:
            unread.append(" ".join((option, *words)))
    grouped = "--group-query-attention" in options
    if "heads" in found and not (grouped and "--num-query-groups" in options):
        found["kv_heads"] = 1 if grouped else found["heads"]
    unread += [" ".join((option, *words)) for option, words in options.items() if option not in DIMENSIONS and _is_open(option, words)]
    if (vocab := whole_number(_first(options, "--vocab-size"))) is not None:
        found["vocab"] = vocab + _tokens_beyond(options)
    if states_architecture(found) and megatron_model.first_dense(options, found) is None:
        unread.append(f"{megatron_model.LAYERS} {_first(options, megatron_model.LAYERS)}")
    if states_architecture(found) and megatron_model.windows(options, found) is None:
        unread.append(" ".join(f"{option} {_first(options, option)}" for option in OF_WINDOW if option in options))
    return found, _kind(options, found, program), tuple(unread)


def states_architecture(found: Mapping[str, int]) -> bool:
    """Return whether the dimensions describe a whole model, so that options that are left out have their defaults."""
    return {"layers", "hidden", "heads"} <= set(found)


def _tokens_beyond(options: Options) -> int:
    """Return how many tokens the vocabulary has beyond `--vocab-size`: this tokenizer adds one for the end of a document."""
    return int(_first(options, "--tokenizer-type") == "NullTokenizer")


def _kind(options: Options, found: Mapping[str, int], program: str) -> dict[str, Value]:
    """Return further keys of `[model]`; none if options state no architecture."""
    if not states_architecture(found):
        return {}
    gated, experts = "--swiglu" in options, found.get("experts", 1)
    name = PurePath(program or PROGRAM).name
    return {
        **({} if "--ffn-hidden-size" in options else {"ffn": _usual_ffn(found["hidden"], gated=gated)}),
        "gated": gated,
        "norm": "rms" if _first(options, "--normalization") == "RMSNorm" else "layer",
        "biases": "--disable-bias-linear" not in options,
        "qkv_bias": "--add-qkv-bias" in options,
        "tied": "--untie-embeddings-and-output-weights" not in options,
        **_positions(options, found),
        **({} if "--num-experts" in options else {"experts": 1, "experts_per_token": 1}),
        **({"experts_per_token": 2} if experts > 1 and "--moe-router-topk" not in options else {}),
        **megatron_model.stated(options, found),
        **({"causal": True, "patch": 0, "token_types": 0} if name == PROGRAM else {"causal": False} if name == _BERT else {}),
    }


def _usual_ffn(hidden: int, *, gated: bool) -> int:
    """Return the default width of the feed-forward network, without `--ffn-hidden-size`."""
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _positions(options: Options, found: Mapping[str, int]) -> dict[str, Value]:
    """Return the rows of a learned position embedding, 0 for a rotary one; nothing if options do not state their number."""
    rotary = "--use-rotary-position-embeddings" in options
    if rotary or _first(options, "--position-embedding-type") not in ("", "learned_absolute"):
        return {"learned_positions": 0}
    if (rows := whole_number(_first(options, "--max-position-embeddings"))) is not None:
        return {"learned_positions": rows}
    return {"learned_positions": found["seq_len"]} if "seq_len" in found else {}


def _first(options: Options, option: str) -> str:
    """Return the first value of an option; empty if it is not given, or has none."""
    return next(iter(options.get(option, ())), "")


def _is_open(option: str, words: Sequence[str]) -> bool:
    """Return whether an option that a launch line keeps has a shell variable as its value."""
    kept = option not in megatron.KNOWN and not _REPLACED.fullmatch(option)
    return kept and any("$" in word for word in itertools.takewhile(lambda word: not _NO_VALUE.fullmatch(word), words))


def command_table(options: Options, program: str, *, model: Model, precision: str) -> str:
    """Return the tables `[command]`, `[command.arguments]` and `[command.steps]` as text, for a job of a model and a precision.

    Raises:
        InputError: the options state another model than the job's, and Megatron-LM cannot train the job's.
    """
    options = _with_precision(_with_model(options, program, model), precision)
    argv = ["torchrun", "--nproc-per-node", "{devices_per_host}", literal(program or PROGRAM), *_kept(options), *_IN_A_TRIAL]
    arguments = "".join(f"{name} = {words}\n" for name, words in _arguments(model.layers, model.experts).items())
    return f'[command]\nargv = {one_option_a_line(argv)}\n\n[command.arguments]\n{arguments}\n[command.steps]\nformat = "megatron"\n'


def _with_model(options: Options, program: str, model: Model) -> Options:
    """Return the options for a model: its own options replace those that state something else."""
    dimensions, kind, _ = model_facts(options, program)
    others = [name for name, value in {**dimensions, **kind}.items() if getattr(model, name) != value]
    if not others:
        return options
    replaced = {option for name in others for option in STATED_BY.get(name, ())}
    ours = megatron.options_of({megatron.ARGUMENTS: " ".join(megatron.model_options(model))})
    ours["--vocab-size"] = [str(model.vocab - _tokens_beyond(options))]
    kept = {option: words for option, words in options.items() if option not in replaced}
    return kept | {option: words for option, words in ours.items() if option in replaced}


def _with_precision(options: Options, precision: str) -> Options:
    """Return the options for the precision of a job. No job has fp16, so this option is kept."""
    if "--fp16" in options:
        return options
    others = {option: words for option, words in options.items() if option != "--bf16"}
    return {**options, "--bf16": options.get("--bf16", [])} if precision == "bf16" else others


def _kept(options: Options) -> Iterable[str]:
    """Yield the options that no parameter and no trial replaces; dimensions are placeholders, which follow the job."""
    for option, words in options.items():
        if option in megatron.KNOWN or _REPLACED.fullmatch(option):
            continue
        yield literal(option)
        if option in DIMENSIONS:
            yield f"{{{DIMENSIONS[option]}}}"
            continue
        for word in words:
            if _NO_VALUE.fullmatch(word):
                break
            yield literal(word)


def _arguments(layers: int, experts: int) -> dict[str, str]:
    """Return what each parameter of search_spaces/megatron.toml adds to the launch line, as TOML."""
    always = {"pp": "--pipeline-model-parallel-size", "micro_batch": "--micro-batch-size"}
    always |= {"ep": "--expert-model-parallel-size"} if experts > 1 else {}
    full = ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    chunks = {str(size): ["--num-virtual-stages-per-pipeline-rank", str(size)] if size > 1 else [] for size in divisors(layers)}
    buckets = {str(size): ["--ddp-bucket-size", str(megatron.bucket_elements(size))] for size in BUCKETS_MB}
    switches: dict[str, dict[str, list[str]]] = {name: {"false": [], "true": [option]} for option, name in megatron.SWITCHES.items()}
    by_value: dict[str, dict[str, list[str]]] = {
        "zero_stage": {"0": [], "1": ["--use-distributed-optimizer"]},
        "schedule": {"1f1b": [], "interleaved": []},
        "model_chunks": chunks,
        "overlap_p2p": {"false": ["--no-overlap-p2p-communication"], "true": []},
        "recompute": {"none": [], "selective": ["--recompute-activations"], "full": full},
        **switches,
        "dp_bucket_mb": buckets,
    }
    arguments = {"tp": spell(["--tensor-model-parallel-size", "{tp}", "--sequence-parallel"])}  # which has no effect for 1
    arguments |= {name: spell([option, f"{{{name}}}"]) for name, option in always.items()}
    for name, each in by_value.items():
        arguments[name] = f"{{ {', '.join(f'{value} = {spell(words)}' for value, words in each.items())} }}"
    return arguments
