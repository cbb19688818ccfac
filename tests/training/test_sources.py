"""The data of a step depend on (seed, step, sequence) alone, and are what the family needs."""

import dataclasses
from pathlib import Path

import pytest
import torch

from oppa.errors import InputError
from oppa.problem.model import Model
from oppa.training.data.batches import MASK, Corpus, in_order
from oppa.training.data.images import Digits
from oppa.training.model.tensor_parallel import IGNORED
from tests.training.data import source
from tests.training.families import ENCODER, TINY, VIT


@pytest.mark.parametrize("model", [TINY, ENCODER, VIT], ids=["text", "masked", "images"])
def test_a_sequence_is_the_same_in_every_share_of_the_batch(model: Model) -> None:
    whole, part, other = source(model).batch(3, range(8)), source(model).batch(3, range(5, 7)), source(model).batch(4, range(8))
    assert torch.equal(whole.inputs[5:7], part.inputs) and torch.equal(whole.targets[5:7], part.targets)
    assert not torch.equal(whole.inputs, other.inputs)
    assert not torch.equal(whole.inputs, source(model, seed=1).batch(3, range(8)).inputs)


@pytest.mark.parametrize("model", [TINY, ENCODER, VIT], ids=["text", "masked", "images"])
def test_a_sample_of_a_run_is_the_same_in_every_batch(model: Model) -> None:
    data = source(model)
    assert data.size is not None
    around = range(data.size - 3, data.size + 5)  # from one epoch to the next
    whole, part = data.samples(around), data.samples(around[2:6])
    assert torch.equal(whole.inputs[2:6], part.inputs) and torch.equal(whole.targets[2:6], part.targets)
    assert not torch.equal(whole.inputs, source(model, seed=1).samples(around).inputs)


def test_all_of_a_corpus_is_read_also_across_files(tmp_path: Path) -> None:
    sizes = (1, 5 << 20, 0, 7, 3)
    generator = torch.Generator().manual_seed(0)
    contents = [torch.randint(256, (size,), generator=generator, dtype=torch.uint8).numpy().tobytes() for size in sizes]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    whole = b"".join(contents)
    corpus = Corpus.load(str(tmp_path), TINY, seed=0)
    assert corpus.size == (len(whole) - 1) // TINY.seq_len
    starts = torch.tensor([0, (5 << 20) - 30, len(whole) - TINY.seq_len])
    windows = corpus.text.windows(starts, TINY.seq_len)
    assert [bytes(window.tolist()) for window in windows] == [whole[start : start + TINY.seq_len] for start in starts.tolist()]


@pytest.mark.parametrize("model", [TINY, VIT], ids=["text", "images"])
def test_an_epoch_has_every_sample_once_and_the_next_has_them_in_another_order(model: Model) -> None:
    data = source(model)
    assert data.size is not None
    first, second = (in_order(data.size, range(epoch * data.size, (epoch + 1) * data.size), seed=0) for epoch in (0, 1))
    assert torch.equal(first.sort().values, torch.arange(data.size)) and torch.equal(second.sort().values, torch.arange(data.size))
    assert not torch.equal(first, second)
    assert data.samples(range(1)).inputs.shape == data.batch(0, range(1)).inputs.shape


def test_an_encoder_predicts_what_is_masked_and_nothing_else() -> None:
    text, masked = source(TINY).batch(0, range(8)).inputs, source(ENCODER).batch(0, range(8))
    hidden = masked.inputs == MASK
    assert torch.equal(masked.targets[hidden], text[hidden]) and torch.equal(masked.inputs[~hidden], text[~hidden])
    assert (masked.targets[~hidden] == IGNORED).all()
    assert hidden.sum(1).tolist() == [round(0.15 * TINY.seq_len)] * 8


def test_digits_fill_the_image_that_the_model_takes() -> None:
    batch = source(VIT).batch(0, range(8))
    assert batch.inputs.shape == (8, 3, 16, 16) and batch.inputs.min() >= -1 and batch.inputs.max() <= 1
    assert set(Digits.load(VIT, seed=0).digits.tolist()) == set(range(10))


@pytest.mark.parametrize(
    "model", [dataclasses.replace(ENCODER, vocab=256), dataclasses.replace(VIT, vocab=9), dataclasses.replace(TINY, vocab=9)]
)
def test_too_small_a_vocabulary_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match="vocab"):
        source(model)


OWN = """
import torch
class Parts:
    def __init__(self, model): self.length = model.seq_len
    def embed(self): ...
    def block(self, index): ...
    def head(self): ...
    def loss(self, output, targets): ...
    def batch(self, step, sequences): return torch.full((len(sequences), self.length), step), torch.tensor(list(sequences))
class Headless(Parts):
    head = property()
"""


def test_a_module_may_bring_its_own_data(tmp_path: Path) -> None:
    (tmp_path / "with_data.py").write_text(OWN)
    batch = source(dataclasses.replace(TINY, entry_point=f"{tmp_path}:with_data:Parts")).batch(3, range(5, 7))
    assert batch.inputs.tolist() == [[3] * TINY.seq_len] * 2 and batch.targets.tolist() == [5, 6]


@pytest.mark.parametrize(("name", "said"), [("Party", "cannot be imported"), ("Headless", "no `head`")])
def test_an_entry_point_without_its_parts_is_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lacking.py").write_text(OWN)
    with pytest.raises(InputError, match=said):
        source(dataclasses.replace(TINY, entry_point=f"{tmp_path}:lacking:{name}"))
