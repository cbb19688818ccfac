"""An export has the weights as Transformers and torch read them; they come back to the last bit, and compute the same."""

import dataclasses
import importlib.util
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from oppa.errors import CheckpointError, InputError
from oppa.problem.model import Model
from oppa.training.checkpoint.exporting import export_dcp, export_huggingface
from oppa.training.model.huggingface import CONFIG, INDEX, PretrainedWeights
from oppa.training.model.stage import ModelStage
from oppa.training.model.tensor_parallel import WHOLE
from oppa.training.model.weights import initial, materialise
from oppa.training.reshard.shards import ADAM, WEIGHT
from tests.training.checkpoints import SQUARE, saved
from tests.training.exported_models import MODELS, OLD, SMALL
from tests.training.families import FAMILIES, TOLERANCE, configured, name_of
from tests.training.layouts import whole_state
from tests.training.rank_pool import RankPool

ABSENT = importlib.util.find_spec("transformers") is None
needs_transformers = pytest.mark.skipif(ABSENT, reason="NOT TESTED on models of Transformers: the package is not installed")
TOKENS = torch.randint(259, (2, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """Return a model, and the folder of its random weights."""
    folder, model = tmp_path_factory.mktemp("exported"), MODELS[request.param]
    export_huggingface(saved(folder / "step-7", model, SQUARE), folder / "weights")
    return model, folder / "weights"


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    return {key.name: tensor for key, tensor in whole_state(model).items() if key.kind == WEIGHT}


def logits_of(model: Model, folder: Path) -> torch.Tensor:
    """Return what this core computes with the weights of a folder."""
    with torch.device("meta"):
        stage = ModelStage(model, range(model.layers + 2), WHOLE)
    pretrained = PretrainedWeights(folder, model).tensor
    materialise(stage, seed=0, layers=model.layers, device=torch.device("cpu"), pretrained=pretrained)
    with torch.no_grad():
        out: torch.Tensor = stage(TOKENS)
    return out


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keep warnings of Transformers, which are errors here, out of its log."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def theirs(folder: Path) -> torch.Tensor:
    """Return what Transformers computes with the weights of a folder."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not (found["missing_keys"] or found["unexpected_keys"] or found["mismatched_keys"]), found
    with torch.no_grad():
        out: torch.Tensor = model.eval()(TOKENS).logits
    return out


def test_what_was_written_is_read_to_the_last_bit(exported: tuple[Model, Path]) -> None:
    model, folder = exported
    pretrained = PretrainedWeights(folder, model)
    for name, tensor in weights_of(model).items():
        assert torch.equal(pretrained.tensor(name, tuple(tensor.shape)), tensor), name


@needs_transformers
@pytest.mark.slow
def test_transformers_computes_the_same(exported: tuple[Model, Path], quiet: None) -> None:
    model, folder = exported
    torch.testing.assert_close(theirs(folder), logits_of(model, folder), rtol=1e-4, atol=1e-4)


def test_large_weights_are_spread_over_files(tmp_path: Path) -> None:
    model = MODELS["gpt2"]
    written = export_huggingface(saved(tmp_path / "step-7", model, SQUARE), tmp_path / "weights", shard_bytes=40_000)
    weights = [file for file in written if file.suffix == ".safetensors"]
    assert len(weights) > 2 and {INDEX, CONFIG} <= {file.name for file in written}
    pretrained = PretrainedWeights(tmp_path / "weights", model)
    for name, tensor in weights_of(model).items():
        assert torch.equal(pretrained.tensor(name, tuple(tensor.shape)), tensor), name


THEIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64},
        {"kv_heads": 2, "norm_eps": 1e-6},
    ),
    "qwen2": (
        {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64},
        {"qkv_bias": True, "norm_eps": 1e-6},
    ),
    "gpt2": ({"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 40}, {**OLD, "ffn": 128, "activation": "gelu_tanh"}),
}


@needs_transformers
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", THEIRS)
def test_a_model_that_transformers_saved_computes_the_same_here(architecture: str, dtype: torch.dtype, tmp_path: Path, quiet: None) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    stated, ours = THEIRS[architecture]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, vocab_size=259, **stated)).to(dtype).save_pretrained(tmp_path)
    model = dataclasses.replace(SMALL, layers=2, **ours)
    torch.testing.assert_close(theirs(tmp_path), logits_of(model, tmp_path), rtol=1e-4, atol=1e-4)


EMPTY = Path("nowhere")
NOT_WRITTEN = {
    "experts": (FAMILIES["mixture"], "it has experts"),
    "an encoder": (FAMILIES["encoder"], "no causal language model"),
    "a ViT": (FAMILIES["vit"], "no language model"),
    "a user's module": (FAMILIES["own"], "architecture of its own"),
    "a bias of the head": (dataclasses.replace(SMALL, biases=True), "not tied"),
    "layer norms without positions": (dataclasses.replace(SMALL, norm="layer"), "RMSNorm"),
    "GPT-2 without biases": (dataclasses.replace(MODELS["gpt2"], biases=False), "GPT-2 has biases"),
    "GPT-2 with few keys": (dataclasses.replace(MODELS["gpt2"], kv_heads=2), "as many keys"),
}


@pytest.mark.parametrize(("model", "said"), NOT_WRITTEN.values(), ids=NOT_WRITTEN)
def test_a_model_that_no_architecture_computes_is_refused(model: Model, said: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", model, dataclasses.replace(SQUARE, zero_stage=0))
    with pytest.raises(InputError, match=said) as refused:
        export_huggingface(folder, tmp_path / "weights")
    assert refused.value.hint and not (tmp_path / "weights").exists()


def changed(folder: Path, to: Path, **values: Any) -> Path:
    """Return a copy of a folder whose `config.json` states other values."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((to / CONFIG).read_text()) | values
    (to / CONFIG).write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return to


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "hidden": ({"hidden_size": 64}, "`hidden = 32`"),
    "keys": ({"num_key_value_heads": 4}, "`kv_heads = 2`"),
    "rotation": ({"rope_theta": 1e6}, "`rope_theta = 500000.0`"),
    "rotation, as Transformers 5 writes it": ({"rope_theta": None, "rope_parameters": {"rope_theta": 7.0}}, "has 7.0"),
    "a scaled rotation": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "is scaled"),
    "norms": ({"rms_norm_eps": None, "tie_word_embeddings": True}, "`tied = false`"),
    "an activation": ({"hidden_act": "relu"}, "its activation is `relu`"),
    "biases": ({"attention_bias": True}, "`qkv_bias = false`"),
    "another architecture": ({"model_type": "gemma"}, "its type is `gemma`"),
    "no architecture": ({"model_type": None}, "no `model_type`"),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    export_huggingface(saved(folder / "step-7", MODELS["llama"], SQUARE), folder / "weights")
    return folder / "weights"


@pytest.mark.parametrize(("values", "said"), CHANGED.values(), ids=CHANGED)
def test_another_model_is_not_started_from(values: dict[str, Any], said: str, llama: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as refused:
        PretrainedWeights(changed(llama, tmp_path / "other", **values), MODELS["llama"])
    assert refused.value.hint


def test_files_that_lack_or_exceed_the_model_are_refused(llama: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, file = MODELS["llama"], "model.safetensors"
    whole = load_file(llama / file)
    spoilt = {
        "it has no tensor `model.norm.weight`": {key: value for key, value in whole.items() if key != "model.norm.weight"},
        "no place for `model.layers.0.self_attn.o_proj.bias`": {**whole, "model.layers.0.self_attn.o_proj.bias": torch.zeros(32)},
        r"has the shape \[31\]": {**whole, "model.norm.weight": torch.ones(31)},
    }
    for number, (said, tensors) in enumerate(spoilt.items()):
        folder = changed(llama, tmp_path / str(number))
        save_file(tensors, folder / file)
        with pytest.raises(InputError, match=said):
            PretrainedWeights(folder, model).tensor("norm.weight", (32,))
    (changed(llama, tmp_path / "cut") / file).write_bytes((llama / file).read_bytes()[:-100])
    (changed(llama, tmp_path / "none") / file).unlink()
    for name in ("cut", "none"):
        with pytest.raises(InputError, match="weights cannot be read"):
            PretrainedWeights(tmp_path / name, model)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with weights that training would draw under another seed."""
    folder, model = tmp_path_factory.mktemp("drawn"), MODELS["gpt2"]
    shapes = {key: tensor.shape for key, tensor in whole_state(model).items()}
    state = {key: initial(key.name, shape, seed=5, layers=4, device=torch.device("cpu")) for key, shape in shapes.items()}
    export_huggingface(saved(folder / "step-7", model, SQUARE, state=state), folder / "weights")
    return str(folder / "weights")


@pytest.fixture(scope="module")
def started_alone(pool: RankPool, drawn: str) -> list[float]:
    return pool.losses(configured(), MODELS["gpt2"], init_from=drawn)


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"tp": 2, "pp": 2}, {"dp": 2, "tp": 2, "zero_stage": 3}, {"dp": 2, "zero_stage": 1}], ids=name_of)
def test_every_layout_starts_from_the_same_weights(
    values: dict[str, object], pool: RankPool, drawn: str, started_alone: list[float]
) -> None:
    assert pool.losses(configured(**values), MODELS["gpt2"], init_from=drawn) == pytest.approx(started_alone, rel=TOLERANCE)
    assert pool.losses(configured(), MODELS["gpt2"], steps=1)[0] != pytest.approx(started_alone[0], rel=10 * TOLERANCE)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("family", ["tied", "mixture"])
def test_torch_loads_a_distributed_checkpoint(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family]
    state = whole_state(model)
    export_dcp(saved(tmp_path / "step-7", model, dataclasses.replace(SQUARE, zero_stage=0)), tmp_path / "dcp")
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    moments = whole["optimizer"]["state"]
    for key, tensor in state.items():
        assert torch.equal(whole["model"][key.name] if key.kind == WEIGHT else moments[key.name][key.kind], tensor), key
    assert {len(each) for each in moments.values()} == {1 + len(ADAM)} and {float(each["step"]) for each in moments.values()} == {7.0}
    room = {"model": {"norm.weight": torch.zeros(model.hidden)}}
    dcp.load(room, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(
        room["model"]["norm.weight"], next(tensor for key, tensor in state.items() if (key.kind, key.name) == (WEIGHT, "norm.weight"))
    )


@pytest.mark.parametrize("write", [export_huggingface, export_dcp])
def test_an_altered_checkpoint_is_not_exported(write: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", MODELS["llama"], SQUARE)
    file = next(folder.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="was changed"):
        write(folder, tmp_path / "out")
