"""A line of LightningCLI states its devices by their number or their indices, and its strategy by a name."""

import pytest

from oppa.errors import InputError
from oppa.tuning.formats.space_words import values_outside_trials
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
