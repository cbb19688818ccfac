"""Makes a launch line for trials of Megatron-LM from a script's own options, and reads the model that they state.

Options that stand for a parameter become `[command.arguments]`; those of torchrun, and those that say how long a run is and what it
writes, are replaced by what a trial needs. All others are kept as they are.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from oppa.problem.declaration import spell
from oppa.problem.space import Value
from oppa.problem.space_file import divisors
from oppa.tuning.formats import megatron

Options = Mapping[str, Sequence[str]]

PROGRAM = "pretrain_gpt.py"
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
_IN_A_TRIAL = ["--global-batch-size", "{global_batch}", "--train-iters", "{steps}", "--log-interval", "1", "--eval-iters", "0"]
_REPLACED = re.compile(
    r"--(nproc[_-]per[_-]node|nnodes|node[_-]rank|master[_-](addr|port)|rdzv[_-].*|standalone|max[_-]restarts|local[_-]ranks[_-]filter"
    r"|train-(iters|samples)|log-interval|eval-(iters|interval)|save|save-interval|load|exit-(interval|duration-in-mins)|tensorboard-.*|wandb-.*"
    r"|recompute-.*|rampup-batch-size)"
)
_NO_VALUE = re.compile(r"torchrun|python[0-9.]*|srun|exec|export|cd|.*\.py|[A-Za-z_]\w*=.*|.*\[[@*]\].*|[&|;<>].*")
"""Words of a script that are no value of the option before them."""
BUCKETS_MB = (153, *(2**power for power in range(13)))
"""The sizes of search_spaces/megatron.toml; Megatron-LM's own needs no word."""


def model_facts(options: Options) -> tuple[dict[str, int], dict[str, Value], tuple[str, ...]]:
    """Return the dimensions that options state, what kind of model they state where it is whole, and the options that cannot be read."""
    found: dict[str, int] = {}
    unread = []
    for option, name in DIMENSIONS.items():
        words = options.get(option)
        if words is None or (name == "kv_heads" and "--group-query-attention" not in options):
            continue
        if words and words[0].isdigit():
            found[name] = int(words[0])
        else:
            unread.append(" ".join((option, *words)))
    unread += [" ".join((option, *words)) for option, words in options.items() if option not in DIMENSIONS and _is_open(option, words)]
    vocab = options.get("--vocab-size", ())
    if vocab and vocab[0].isdigit():
        end_of_document = list(options.get("--tokenizer-type", ()))[:1] == ["NullTokenizer"]
        found["vocab"] = int(vocab[0]) + end_of_document
    return found, _kind(options, found), tuple(unread)


def _kind(options: Options, found: Mapping[str, int]) -> dict[str, Value]:
    """Return further keys of `[model]`, with the defaults of megatron/training/arguments.py; none where dimensions are missing."""
    if not {"layers", "hidden", "heads", "seq_len", "vocab"} <= set(found):
        return {}
    hidden, gated = found["hidden"], "--swiglu" in options
    norm = list(options.get("--normalization", ()))[:1] == ["RMSNorm"]
    positions = list(options.get("--max-position-embeddings", ()))[:1]
    learned = list(options.get("--position-embedding-type", ("learned_absolute",)))[:1] == ["learned_absolute"]
    return {
        **({} if "ffn" in found else {"ffn": int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden}),
        "gated": gated,
        "norm": "rms" if norm else "layer",
        "biases": "--disable-bias-linear" not in options,
        "qkv_bias": "--add-qkv-bias" in options,
        "tied": "--untie-embeddings-and-output-weights" not in options,
        **({"learned_positions": int(positions[0]) if positions and positions[0].isdigit() else found["seq_len"]} if learned else {}),
    }


def _is_open(option: str, words: Sequence[str]) -> bool:
    """Return whether an option that a launch line keeps has a variable of the shell as its value."""
    kept = option not in megatron.KNOWN and not _REPLACED.fullmatch(option)
    return kept and any("$" in word for word in itertools.takewhile(lambda word: not _NO_VALUE.fullmatch(word), words))


def command_table(options: Options, program: str, *, layers: int, experts: int) -> str:
    """Return the tables `[command]`, `[command.arguments]` and `[command.steps]` as text."""
    argv = ["torchrun", "--nproc-per-node", "{devices_per_host}", program or PROGRAM, *_kept(options), *_IN_A_TRIAL]
    arguments = "".join(f"{name} = {words}\n" for name, words in _arguments(layers, experts).items())
    return f'[command]\nargv = [\n{"".join(_lines(argv))}]\n\n[command.arguments]\n{arguments}\n[command.steps]\nformat = "megatron"\n'


def _kept(options: Options) -> Iterable[str]:
    """Yield the options that no parameter and no trial replaces; dimensions follow the job."""
    for option, words in options.items():
        if option in megatron.KNOWN or _REPLACED.fullmatch(option):
            continue
        yield option
        if option in DIMENSIONS:
            yield f"{{{DIMENSIONS[option]}}}"
            continue
        for word in words:
            if _NO_VALUE.fullmatch(word):
                break
            yield word.replace("{", "{{").replace("}", "}}")


def _lines(argv: Sequence[str]) -> Iterable[str]:
    """Yield the words of a launch line, an option with its values a line."""
    line: list[str] = []
    for word in argv:
        if word.startswith("--") and line:
            yield f"    {', '.join(map(spell, line))},\n"
            line = []
        line.append(word)
    yield f"    {', '.join(map(spell, line))},\n"


def _arguments(layers: int, experts: int) -> dict[str, str]:
    """Return what each parameter of search_spaces/megatron.toml adds to the launch line, as TOML."""
    always = {"tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "micro_batch": "--micro-batch-size"}
    always |= {"ep": "--expert-model-parallel-size"} if experts > 1 else {}
    full = ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    chunks = {str(size): ["--num-virtual-stages-per-pipeline-rank", str(size)] if size > 1 else [] for size in divisors(layers)}
    usual, *others = BUCKETS_MB
    buckets = {str(size): ["--ddp-bucket-size", str(megatron.bucket_elements(size))] for size in others}
    switches: dict[str, dict[str, list[str]]] = {name: {"false": [], "true": [option]} for option, name in megatron.SWITCHES.items()}
    by_value: dict[str, dict[str, list[str]]] = {
        "zero_stage": {"0": [], "1": ["--use-distributed-optimizer"]},
        "schedule": {"1f1b": [], "interleaved": []},
        "model_chunks": chunks,
        "overlap_p2p": {"false": ["--no-overlap-p2p-communication"], "true": []},
        "recompute": {"none": [], "selective": ["--recompute-activations"], "full": full},
        **switches,
        "dp_bucket_mb": {str(usual): [], **buckets},
    }
    said = {name: spell([option, f"{{{name}}}"]) for name, option in always.items()}
    for name, each in by_value.items():
        said[name] = f"{{ {', '.join(f'{value} = {spell(words)}' for value, words in each.items())} }}"
    return said
