"""A line of LightningCLI states its devices by their number or their indices, and its strategy by a name."""

import pytest

from oppa.errors import InputError
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.changed_line import changed_line
from tests.tuning.launch_line.conftest import CPUS, GPUS

LINE = "python main.py fit --config c.yaml --data.batch_size 16"
BY_DDP = "trainer: {strategy: ddp}\n"


@pytest.mark.parametrize("machine", [GPUS, CPUS])
@pytest.mark.parametrize(
    ("words", "file", "count"),
    [
        ("--trainer.devices 0,1,2,3", "", 4),
        ("--trainer.devices '[0, 1]'", "", 2),
        ("--trainer.devices=5,", "", 1),
        ("", "  devices: [0, 1, 2]\n", 3),
        ("", "  devices: '2, 3'\n", 2),
        ("--trainer.devices=2", "", 2),
    ],
)
def test_a_list_of_indices_counts_them(words, file, count, machine, job) -> None:
    made = job(f"{LINE} {words}", {"c.yaml": f"trainer:\n  strategy: ddp\n{file}"}, machine=machine)
    assert (made.problem.cluster.devices, made.meaning.global_batch) == (count, 16 * count)


@pytest.mark.parametrize(("indices", "is_kept"), [("0,1", False), ("4,5", True)])
def test_trials_keep_indices_of_other_devices_than_the_first(indices, is_kept, job) -> None:
    made = job(f"{LINE} --trainer.devices {indices}", {"c.yaml": BY_DDP})
    words = made.problem.launch_line(made.problem.baseline).words(values_outside_trials(made.problem, made.problem.baseline), {})
    assert ("--trainer.devices=2" in words, "4,5" in words, bool(made.meaning.hints)) == (not is_kept, is_kept, is_kept)


@pytest.mark.parametrize("words", ["--trainer.devices 0-3", "--trainer.devices=$N", "--trainer.devices 0", "--trainer.num_nodes $N"])
def test_devices_that_are_no_number_are_refused(words, job) -> None:
    with pytest.raises(InputError, match=r"`trainer\.(devices|num_nodes) = .* \(line\) is n"):
        job(f"{LINE} {words}", {"c.yaml": BY_DDP})


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_is_tried_if_the_line_has_it(stage, job) -> None:
    line = f"{LINE} --trainer.devices 8 --trainer.strategy deepspeed_stage_{stage}"
    made = job(line, {"c.yaml": "seed_everything: 1\n"})
    usual = made.problem.baseline
    assert (usual["strategy"], usual.zero_stage) == ("deepspeed", stage) and " ".join(changed_line(made, usual).line) == line
    words = made.problem.launch_line(usual).words(values_outside_trials(made.problem, usual), {})
    assert f"--trainer.strategy=deepspeed_stage_{stage}" in words
    assert {each["strategy"] for each in made.problem.candidates()} == {"ddp", "fsdp", "fsdp-shard-grad-op", "deepspeed"}


def test_a_line_without_baseline_gets_no_options_that_only_trials_need(job) -> None:
    line = f"{LINE} --trainer.devices 8 --trainer.strategy fsdp"
    made = job(line, {"c.yaml": "seed_everything: 1\n"}, settings=['space.parameters.strategy=["ddp","fsdp-shard-grad-op"]'])
    assert made.problem.baseline is None
    best = next(each for each in made.problem.candidates() if (each["strategy"], each.micro_batch) == ("ddp", 8))
    changed = line.replace("fsdp", "ddp").replace("size 16", "size 8")
    assert " ".join(changed_line(made, best).line) == f"{changed} --trainer.accumulate_grad_batches 2"
