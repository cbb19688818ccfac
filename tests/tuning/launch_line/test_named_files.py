"""A launch line may name files of one basename, which stay distinct in its trials and in the winner's folder."""

import itertools
import json

from oppa.tuning.launch_line.winner_files import write_files

PARSER = "from transformers import HfArgumentParser, Trainer, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"


def test_the_winner_s_files_of_one_name_have_a_subfolder_each(job, tmp_path) -> None:
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "output_dir": "out", "deepspeed": "ds/c.json"}
    files = {"train/c.json": json.dumps(arguments), "ds/c.json": '{"zero_optimization": {"stage": 2}}', "t.py": PARSER}
    made = job("torchrun --nproc-per-node 8 t.py train/c.json", files)
    best = next(each for each in made.problem.candidates() if each.zero_stage == 3 and each.micro_batch == 4 and each.recompute == "none")
    ds, train = write_files(made, best, tmp_path / "best")
    assert json.loads(ds.read_text())["zero_optimization"] == {"stage": 3}
    assert json.loads(train.read_text())["deepspeed"] == str(ds) == str(tmp_path / "best" / "ds" / "c.json")


def test_a_word_is_replaced_by_the_copy_of_the_file_that_it_names(job) -> None:
    line = "accelerate launch --config_file c.json --deepspeed_config_file ds/c.json t.py --per_device_train_batch_size 2 --output_dir out"
    ds = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    files = {"c.json": '{"distributed_type": "DEEPSPEED", "num_processes": 8}', "ds/c.json": json.dumps(ds), "t.py": PARSER}
    named = dict(itertools.pairwise(job(line, files).problem.command.argv))
    assert (named["--config_file"], named["--deepspeed_config_file"]) == ("c.json", "{ds}")


def test_a_file_whose_name_only_ends_like_that_of_a_copy_is_the_user_s_own(job) -> None:
    line = "torchrun --nproc-per-node 8 t.py --per_device_train_batch_size 2 --output_dir out --deepspeed=c.json --train_file my_c.json"
    made = job(line, {"c.json": '{"zero_optimization": {"stage": 2}}', "t.py": PARSER})
    assert {"--deepspeed={ds}", "my_c.json"} <= {*made.problem.command.argv}
