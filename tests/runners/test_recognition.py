"""The format in which a program prints its steps is recognised by two lines, and the first of these counts as well."""

import importlib.util

import pytest

from oppa import catalog
from oppa.problem.command_table import formats
from tests.runners.printed_lines import LINES

_spec = importlib.util.spec_from_file_location("recognition", catalog.root() / "runners" / "command" / "recognition.py")
recognition = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recognition)


MARK = "GPU available: False, used: False"
OTHERS = {
    "metric-logger": "Test:  [  {n}/98]  eta: 0:00:10  loss: 0.9 (0.9)  acc1: 70 (71)  time: 0.1  data: 0.0003  max mem: 4012",
    "mmengine": "- mmengine - INFO - Epoch(val) [1][{n}/625]    eta: 0:01:00  time: 0.1  data_time: 0.01",
    "timm": "Test: [  {n}/195]  Time: 0.412 (0.430)  Loss: 0.9 (0.9)  Acc@1: 70 (71)",
    "swin": "INFO Test: [{n}/98]\tTime 0.412 (0.430)\tLoss 0.9 (0.9)\tAcc@1 70 (71)\tMem 9MB",
    "olmo": "[eval_step={n}/100]",
    "modded-nanogpt": "step:{n}/1750 val_loss:4.5 train_time:5000ms step_avg:490.00ms",
    "json-lines": '{{"mode": "val", "step": {n}, "loss": 2.5}}',
    "step-loss": "step {n}: train loss 2.5, val loss 2.6",
}
"""The lines of the same programs while they evaluate."""


@pytest.mark.parametrize("name", LINES)
def test_what_a_program_prints_of_a_step_is_recognised(name):
    seen = recognition.Recognition()
    seen.read([MARK] if name == "lightning" else [], 0.0)
    seen.read([LINES[name].format(n) for n in (11, 12)], 1.0)
    stated = seen.patterns[seen.name].search(LINES[name].format(13)).groupdict()
    assert seen.name == name
    assert stated.get("step") in (None, "13", " 13") and stated.get("loss") in (None, "2.5", "2.50000", "2.5000e+00", "1.0E+00")


@pytest.mark.parametrize("name", OTHERS)
def test_an_evaluation_is_no_step(name):
    seen = recognition.Recognition()
    assert not seen.read([OTHERS[name].format(n=n) for n in (11, 12)], 1.0)
    assert not seen.patterns[name].search(OTHERS[name].format(n=13))


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["step 1 | loss 2.5 | 85.3 ms", "step 2 | loss 2.4 | 85.1 ms"], "step-ms"),
        (["Iter: 3, 0.085s", "Iter: 4, 0.086s"], "step-s"),
        (["  1%| | 1/100 [00:01<00:09,  9.71it/s]", "  2%| | 2/100 [00:01<00:09,  9.71it/s]"], "progress-bar"),
        (["speed 0.5 s/it", "speed 0.6 sec / step"], "s-per-step"),
        (["11.7 it/s", "11.9 steps/s"], "steps-per-s"),
        (["12,345 tokens/s", "throughput: 1.2e4 tok/sec"], "tokens-per-s"),
        (["{'loss': '2.5', 'epoch': 1}", "{'loss': 2.4, 'epoch': 1}"], "hf-trainer"),
        (["{'loss': 2.5, 'epoch': 1, 'step': 10}", "{'loss': 2.4, 'epoch': 1, 'step': 20}"], "json-lines"),
        (['{"train/loss": 2.5, "train/global_step": 1}', '{"train/loss": 2.4, "train/global_step": 2}'], "json-lines"),
        (["step 1: loss 2.5", "step 2: loss nan"], "step-loss"),
        (["loss 2.5 | lr 1e-4 | it 10", "loss 2.5 | lr 1e-4 | it 20"], "step-loss"),
    ],
)
def test_a_usual_format_is_recognised_by_two_lines(lines, name):
    seen = recognition.Recognition()
    assert seen.read(["loading", "step one of the setup"], 1.0) == [] and seen.read(lines[:1], 2.0) == []
    assert seen.read(["between", *lines[1:]], 3.0) == [(lines[:1], 2.0), (lines[1:], 3.0)]
    assert seen.name == name


BAR = "{}: {:3}%|##        | {}/{} [00:00<00:01, 1210.50it/s]"
"""A tqdm bar, by its description, its percentage, the number done and the total."""


@pytest.mark.parametrize(
    "description",
    [
        "Loading weights",  # transformers 5
        "Loading checkpoint shards",  # transformers 4
        "Fetching 3 files",  # huggingface_hub
        "Resolving data files",  # datasets, as the next three
        "Computing checksums",
        "Running tokenizer on dataset",
        "Creating json from Arrow format",
        "Sanity Checking DataLoader 0",  # Lightning, as the next one
        "Validation DataLoader 0",
        "Evaluating",
        "Processed prompts",  # vLLM
        "[rank1]: Loading weights",
        "[default0]:[rank0]:   Loading weights",
        "(Worker pid=7) [dry-run] Fetching 3 files",
        "Val",
        "Test",
        "Epoch 3 [val]",
        "Epoch 3/10 Validation 2",
        "Warm-up",
    ],
)
def test_a_bar_that_trains_nothing_is_no_step(description):
    seen = recognition.Recognition()
    shown = [BAR.format(description, done, done, 100) for done in (1, 50, 100)]
    assert seen.read([*shown, f"{description}: 12it [00:01, 9.71it/s]"] * 2, 1.0) == [] and not seen.name
    train = [BAR.format("Training", done, done, 100) for done in (1, 2)]
    assert seen.read([*shown, *train], 2.0) == [(train, 2.0)] and seen.name == "progress-bar"
    assert not seen.patterns[seen.name].search(shown[0]), "nor is one that is shown between steps"


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        (["GPU available: False, used: False"], "lightning"),
        (["[rank0]:GPU available: True (cuda), used: True"], "lightning"),
        (["Epoch 0:   1%| | 1/100 [00:01<00:09,  9.71it/s, v_num=0]"], "lightning"),
        (["Epoch 0:   1%| | 1/100 [00:01<00:09,  9.71it/s, loss=0.5]"], "progress-bar"),
        ([], "progress-bar"),
    ],
)
def test_a_bar_over_an_epoch_is_lightnings_only_in_a_program_of_lightning(printed, name):
    seen = recognition.Recognition()
    seen.read([*printed, *(BAR.format("Epoch 0", done, done, 100) for done in (2, 3))], 1.0)
    assert seen.name == name


def test_the_runner_and_a_job_file_read_the_same_formats():
    assert formats() == recognition.FORMATS


def stated(text):
    """The format and the number that a program states if it prints only such lines; two empty texts if none is recognised."""
    seen = recognition.Recognition()
    seen.read([text] * recognition.ENOUGH, 1.0)
    facts = seen.patterns[seen.name].search(text).groupdict() if seen.name else {}
    return seen.name, next((facts[name] for name in ("s", "ms", "per_s", "tokens_per_s", "done") if name in facts), "")


@pytest.mark.parametrize(
    "description",
    [
        "",
        "Epochs",
        "[rank0]: Train",
        "loss 2.5",
        "Steps (loading 1 ms)",
        "it 3 | mAP 0.5",
        "train 2.5, val 2.6, best",
        "Latest",
        "test: Train 3",
    ],
)
def test_any_other_bar_counts_steps(description):
    assert stated(BAR.format(description, 12, 12, 100)) == ("progress-bar", "12")
    assert stated(f"{description}: 12it [00:01, 9.71it/s]") == ("progress-bar", "12"), "without a total"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("step 5, loss 3.26, tok/s 12350", ("tokens-per-s", "12350")),
        ("step 5, loss 3.26 tok/s: 12,350.5 lr 1e-4", ("tokens-per-s", "12,350.5")),
        ("loss 3.26 | tok/s = 1.2e4 | x 3", ("tokens-per-s", "1.2e4")),
        ("loss 3.26 | it/s 11.7 | x", ("steps-per-s", "11.7")),
        ("Iter 10: Train loss 2.345, It/sec 0.500, Tokens/sec 120.345, Peak mem 14.2 GB", ("steps-per-s", "0.500")),  # mlx_lm
        ("loss 0.5, s/it 0.085", ("s-per-step", "0.085")),
        ("11.7 it/s | loss 3.2", ("steps-per-s", "11.7")),
        ("0.085 s/it, lr 1e-4", ("s-per-step", "0.085")),
        ("loss 3.26, 12,345 tokens/s", ("tokens-per-s", "12,345")),
        ("[12:00:01,123] 11.7 it/s", ("steps-per-s", "11.7")),
    ],
)
def test_a_rate_is_read_on_either_side_of_its_label(text, found):
    assert stated(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "loss 3.26 it/s 11.7",  # which of both is the rate?
        "loss 0.5 s/it 0.085",
        "loss 3.26  tok/s  12350",
        "loss 3.26, tok/s 12K",
        "loss 3.26, tok/s: 1.2K",
        "loss 50.1, Tokens/s/device: 12345.6",
        "12,345 tokens/sec/gpu",  # one rank's
        "| 12,345 tok/s per GPU |",
        "tokens/s/rank = 12,345",
    ],
)
def test_an_ambiguous_rate_is_not_read(text):
    assert stated(text) == ("", "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("iteration 1 | elapsed 31.2 s | 0.085 s/it", ("s-per-step", "0.085")),
        ("iteration 1 | 31.2 s | 0.085 s/it", ("s-per-step", "0.085")),
        ("iteration 1 | elapsed 31.2 s", ("", "")),
        ("iteration 1 | wall_time: 31.2 s", ("", "")),
        ("iteration 1, time since start 31.2 s, took 0.085 s", ("step-s", "0.085")),
        ("iteration 1 runtime 31.2s", ("", "")),
        ("iter 1: data 0.010s batch 0.350s", ("step-s", "0.350")),
        ("iter 1: data_time: 1e-2s, dataloader 0.02 s, time: 0.350s", ("step-s", "0.350")),
        ("step 1, time_elapsed 1,234.5 s, ETA 1h 3 min 20 s, took 0.35 sec", ("step-s", "0.35")),
        ("step 1: total loss 2.5, load 10 ms, 85.3 ms", ("step-ms", "85.3")),
        ("step 1: metadata read, 85.3 ms", ("step-ms", "85.3")),
        ("step 5 | fwd 20.0 ms | bwd 40.0 ms | took 65.0 ms", ("step-ms", "65.0")),
        ("it 000012 | loss 2.5 | dt: 20.11ms | tok/sec: 2,976", ("step-ms", "20.11")),
        ("2026-11-29 global_step=295 loss=2.5 step_time=0.0485s", ("step-s", "0.0485")),
        ("eval_step=295 took 0.0485s", ("", "")),
        ("[0][395/400] loss 2.5, 13.3 ms/step", ("ms-per-step", "13.3")),
        ("it/s: 11.7 | 85 ms", ("steps-per-s", "11.7")),
        ("step 1: 0,085 s", ("step-s", "0,085")),
        ("step 1: took 1,976.5 ms", ("step-ms", "1,976.5")),
        ("step 1: took 1.976,5 ms", ("step-ms", "1.976,5")),
        ("step 1,2.5,85.3 ms", ("step-ms", "85.3")),
        ("0,085 s/it", ("s-per-step", "0,085")),
        ("11,7 it/s", ("steps-per-s", "11,7")),
        ("ms/step: 1,976.5 | x", ("ms-per-step", "1,976.5")),
        ("Epoch: [0][  95/5005]\tTime  0.030 (  0.031)\tData  0.001 (  0.002)\tLoss 6.9e+00 (7.0e+00)", ("pytorch-imagenet", "0.030")),
    ],
)
def test_the_time_of_a_step_is_no_total_and_not_the_loaders(text, found):
    assert stated(text) == found


SETUP = (
    "Step 1: compile the loss",
    "step 2/3: loss scale 65536",
    "val: step 3 loss 2.5",
    "{'eval/step': 3, 'eval/loss': 2.5}",
    "max_steps 3 loss 2.5",
)
"""Lines of steps that train nothing."""


@pytest.mark.slow
def test_text_that_states_no_step_is_none_and_is_not_kept():
    seen = recognition.Recognition()
    for line in ("epochs: 3", "learning rate 1e-3", "saved in 3.2 s", "x" * 100_000, "step 1 " * 100_000, "1 step", *SETUP):
        assert seen.read([line] * 20, 1.0) == []
    assert not seen.lines and not seen.name


def test_the_time_of_a_micro_batch_of_litgpt_is_not_that_of_a_step():
    seen = recognition.Recognition()
    line = "Epoch 1 | iter {} step {} | loss train: 6.4, val: n/a | iter time: 6.08 ms{} remaining time: 1:53:43"
    seen.read([line.format(2 * step + part, step + part, " (step)" * part) for step in range(3) for part in range(2)], 1.0)
    assert seen.name == "litgpt"
