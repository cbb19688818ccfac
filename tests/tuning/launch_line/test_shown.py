"""The output about a launch line has copies of files, and the way in which a model is stated."""

import io

import pytest
from rich.console import Console

from oppa.cli.views.launch_line_view import print_changed, print_understood
from oppa.problem.describe import unknown
from oppa.report.money import most_lines
from oppa.tuning.comparison import WinnerComparison
from oppa.tuning.launch_line.changed_line import changed_line
from oppa.tuning.repeated_failures import remedy
from tests.tuning.conftest import trial_of
from tests.tuning.launch_line.conftest import CPUS
from tests.tuning.launch_line.examples import FSDP

DEEPSPEED = '{"train_batch_size": 64, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}'
TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4 --output_dir out"


def trials_of(configuration, *rates):
    """Return the repeats of a configuration, with their rates."""
    return tuple(trial_of(number, configuration, rate, purpose="verification") for number, rate in enumerate(rates, 1))


@pytest.mark.parametrize(("winner_rates", "keeps"), [((1.0, 1.2, 1.1), True), ((2.0, 2.01, 2.02), False)])
def test_a_winner_that_is_tied_with_the_present_configuration_changes_no_line(winner_rates, keeps, job, capsys) -> None:
    made = job(TRAINER)
    present = made.problem.baseline
    winner = next(each for each in made.problem.candidates() if each.micro_batch == 2)
    repeats = {winner: trials_of(winner, *winner_rates), present: trials_of(present, 1.0, 1.1, 1.0)}
    best, reference = repeats[winner][0], repeats[present][0]
    found = WinnerComparison(best=best, reference=reference, runner_up=None, repeats=repeats, baseline=present)
    assert found.keeps_baseline is keeps
    print_changed(changed_line(made, winner), keep=changed_line(made, present) if found.keeps_baseline else None)
    text = capsys.readouterr().err
    first = text.split("\n\n")[1]
    assert (first.strip() == TRAINER) is keeps and ("keep it: no other configuration is measurably faster" in text) is keeps


def shown(made) -> str:
    """Return what is printed of a job."""
    text = io.StringIO()
    print_understood(made, Console(file=text, width=200))
    return text.getvalue()


@pytest.mark.parametrize(
    ("line", "name", "text", "row"),
    [
        ("accelerate launch --config_file fsdp.yaml sft.py", "fsdp.yaml", FSDP, "fsdp.yaml: a copy with zero_stage"),
        (
            f"{TRAINER} --deepspeed ds.json",
            "ds.json",
            DEEPSPEED,
            "ds.json: a copy with zero_stage, global_batch, num_microbatches\n",
        ),
        (
            "torchrun --nproc-per-node 8 train.py --deepspeed --deepspeed_config ds.json",
            "ds.json",
            DEEPSPEED,
            "ds.json: a copy with zero_stage, steps_per_print = 1\n",
        ),
    ],
)
def test_a_copy_of_a_file_has_its_row(line, name, text, row, job) -> None:
    assert f"trials    {row}" in shown(job(line, {name: text}))


@pytest.mark.parametrize(("more", "precision"), [("", ("bf16", "run.yaml")), ("--trainer.precision=16-mixed", ("fp16", "line"))])
def test_what_lightning_s_file_states_has_the_file_as_its_origin(more, precision, job) -> None:
    trainer = "trainer: {devices: 8, strategy: fsdp, precision: bf16-mixed}\n"
    data = "data: {class_path: x.Y, init_args: {batch_size: 16, num_workers: 6}}\n"
    made = job(f"python train.py fit --config run.yaml {more}", {"run.yaml": trainer + data})
    rows = [line.split() for line in shown(made).splitlines() if line.startswith("  ")]
    stated = {("precision", *precision), ("zero_stage", "3", "run.yaml"), ("num_workers", "6", "run.yaml")}
    assert stated <= set(map(tuple, rows)) and not [row for row in rows if "default" in row]


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (TRAINER, {}),
        ("accelerate launch --config_file fsdp.yaml sft.py", {"fsdp.yaml": FSDP}),
        ("torchrun --nproc-per-node 8 train.py --deepspeed --deepspeed_config ds.json", {"ds.json": DEEPSPEED}),
        ("python train.py fit --trainer.devices 8 --trainer.strategy ddp --data.batch_size 16", {}),
        ("torchrun --nproc-per-node 8 run_recipe.py train.global_batch_size=8 model.tensor_model_parallel_size=2", {}),
        ("torchrun --nproc-per-node 8 train.py --batch {batch=2:1,2}", {}),
    ],
)
def test_without_a_model_the_prior_states_what_gives_one(line, files, job) -> None:
    made = job(line, files)
    prior = unknown(made.problem, made.problem.candidates())
    assert prior.startswith("none") and "`--model layers=32,hidden=4096,...` or `--model config.json`" in prior
    assert not any("--model layers" in hint for hint in made.meaning.hints)


@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ((), "up to 2.2 device-hours: 24 trials and 9 repeats of up to 2 min 00 s"),
        (("limits.max_gpu_hours=1",), "up to 1 device-hours: 24 trials and 9 repeats of up to 2 min 00 s"),
        (("limits.trials=500",), "up to 2.2 device-hours: 24 trials and 9 repeats of up to 2 min 00 s"),
    ],
)
def test_without_a_prediction_the_cost_has_an_upper_bound(settings, cost, job) -> None:
    made = job("torchrun --nproc-per-node 2 train.py --batch {batch=1:1,2,3,4} --k {k=0:0,1,2,3,4,5}", machine=CPUS, settings=settings)
    assert most_lines(made.problem, len(made.problem.candidates())) == [("cost", cost)]


@pytest.mark.parametrize(("outcome", "is_hinted"), [("timed_out", True), ("failed", False)])
def test_a_trial_that_hangs_before_its_first_step_has_a_hint_at_its_time_limit(outcome, is_hinted, job) -> None:
    problem = job("torchrun --nproc-per-node 8 train.py --batch {batch=1:1,2}").problem
    silent = trial_of(0, problem.candidates().configuration(0), 1.0, outcome, cause="no step was reported: x", step_times_s=())
    assert ("raise `limits.trial_time` if it takes longer to start" in remedy(silent, problem)) is is_hinted
    assert "command.steps.pattern" in remedy(silent, problem)


@pytest.mark.parametrize(
    ("lines", "pattern"),
    [
        ("step 1 loss 2.5\nstep 2 loss 2.4", "pattern='step (?P<step>[0-9]+)'"),
        ("loading\nglobal_step: 8, lr 1\nglobal_step: 9, lr 1", "pattern='global_step: (?P<step>[0-9]+)'"),
        ('{"step": 8, "loss": 2.5}\n{"step": 9, "loss": 2.4}', "pattern='step.: (?P<step>[0-9]+)'"),
        ("loss 2.5\nstep 2 of the setup", "pattern='step (?P<step>[0-9]+) took (?P<ms>[0-9.]+) ms'"),
        ("", "pattern='step (?P<step>[0-9]+) took (?P<ms>[0-9.]+) ms'"),
    ],
)
def test_the_pattern_in_a_hint_is_that_of_the_lines_that_the_program_printed(lines, pattern, job) -> None:
    problem = job("torchrun --nproc-per-node 8 t.py --b {b=1:1,2}").problem
    silent = trial_of(1, problem.baseline, None, "failed", cause="no step was reported", traceback=lines)
    assert pattern in remedy(silent, problem)
