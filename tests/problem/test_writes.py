"""A launch line in trials: what it writes is redirected or off, and what is not understood is named."""

import shlex
import sys

import pytest

from oppa.errors import InputError, JobError
from oppa.problem.file_writes import harmless_keys
from oppa.problem.writes import harmless, require_known
from oppa.problem.writes_file import framework_of, writes

FRAMEWORKS = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "transformers", "lightning", "plain")
START = {"torchtitan": "torchrun -m torchtitan.train", "lightning": "python train.py fit"}


def trial(framework, text, **paths):
    """Return the words of a trial after those of the program."""
    found = harmless(framework, shlex.split(f"{START.get(framework, 'python train.py')} {text}"), paths=paths)
    return list(found.words), found


def test_each_framework_has_a_table():
    assert set(FRAMEWORKS) <= writes().frameworks.keys()
    assert {framework_of(name) for name in FRAMEWORKS} == set(FRAMEWORKS) and framework_of("torch") == "plain"
    with pytest.raises(InputError, match="what `megatorn` writes is not declared"):
        harmless("megatorn", ["python", "train.py"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_harmless_line_stays_as_it_is(framework):
    """Changes of trials that the line already has are not made again."""
    once, _ = trial(framework, "")
    assert list(harmless(framework, once).words) == once
    assert harmless(framework, once).changes == ()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_words_replaced_by_their_originals_are_the_users_line(framework):
    """Nothing is lost: the words that are not changed stand in their order."""
    words = shlex.split("torchrun --log-dir /logs train.py --lr 1e-3 --output_dir out --seed 7 --flag")
    found = harmless(framework, words)
    changed = {word for change in found.changes for word in (*change.original, *change.trial)}
    assert [word for word in words if word not in changed] == [word for word in found.words if word not in changed]


WRITES = [
    ("megatron", "--save /mine --load /mine --tensorboard-dir /mine --wandb-project p --exit-signal-handler", ["--wandb", "signal"]),
    ("megatron", "--profile --use-pytorch-profiler --record-memory-history --log-progress", ["profile", "history", "progress"]),
    ("megatron-bridge", "checkpoint.save=/mine checkpoint.load=/mine logger.tensorboard_dir=/mine logger.wandb_project=p", ["=p "]),
    ("torchtitan", "--checkpoint.enable --metrics.enable_wandb --profiler.enable_profiling --dump-folder /mine", [".enable"]),
    ("torchtitan", "--fault_tolerance.enable --fault_tolerance.group_size=2", [".enable"]),
    ("accelerate", "--with_tracking --checkpointing_steps 10 --push_to_hub --project_dir=/mine", ["tracking", "steps", "hub"]),
    (
        "transformers",
        "--output-dir /mine --push_to_hub true --report_to wandb tensorboard --do_eval --eval_on_start",
        ["hub", "wandb", "do_eval", "eval_on_start"],
    ),
    ("transformers", "--resume_from_checkpoint /mine --load_best_model_at_end --enable_jit_checkpoint", ["resume", "load_best", "jit"]),
    ("lightning", "--trainer.logger=WandbLogger --trainer.logger.save_dir=/mine --trainer.profiler simple", ["Wandb", "simple"]),
    ("lightning", "--ckpt_path /mine --trainer.default_root_dir /mine", ["ckpt"]),
    ("plain", "--output_dir /mine --log-dir=/mine --save_path mine.pt", []),
    ("plain", "--push_to_hub --with_tracking true --hub-model-id me/mine --hub_always_push", ["hub", "tracking", "true"]),
]


@pytest.mark.parametrize(("framework", "text", "gone"), WRITES)
def test_what_is_written_is_redirected_or_off(framework, text, gone):
    words, found = trial(framework, text)
    assert found.unknown == ()
    assert [part for part in (*gone, "mine") if part in f"{' '.join(words)} "] == []


def test_a_trial_writes_below_its_own_folder():
    words, _ = trial("plain", "--output_dir /out --log-dir=/logs --save_path m.pt")
    assert words[2:] == [
        "--output_dir",
        "{folder}/writes/output_dir",
        "--log-dir={folder}/writes/log-dir",
        "--save_path",
        "{folder}/writes/save_path.pt",
    ]


def test_caches_are_shared_by_trials():
    words, _ = trial("megatron", "--data-cache-path /cache")
    assert words[words.index("--data-cache-path") + 1] == "{cache_folder}/data-cache-path"
    assert "--data-cache-path" in trial("megatron", "")[0], "without it, indices are written next to the data"


def test_the_run_length_of_the_user_stays():
    """Megatron-LM derives its samples from it, and ends by an option of its own."""
    words, _ = trial("megatron", "--train-iters 500000 --exit-interval 2000")
    assert words[2:6] == ["--train-iters", "500000", "--exit-interval", "{steps}"]
    assert "--max_steps 9" in " ".join(trial("transformers", "--max_steps 9")[0])
    assert "--training.steps 9" in " ".join(trial("torchtitan", "--training.steps 9")[0])


def test_what_is_read_stays():
    text = "--data-path 0.5 /data/a 0.5 /data/b --tokenizer-model /tok.model --ckpt-format torch_dist --seed 3"
    words, found = trial("megatron", text)
    assert words[2 : 2 + len(shlex.split(text))] == shlex.split(text) and found.unknown == ()


def test_a_load_that_decides_the_model_stays():
    words, _ = trial("megatron", "--load /ckpt --use-checkpoint-args")
    assert "/ckpt" in words
    assert "/ckpt" not in trial("megatron", "--load /ckpt")[0]


def test_callbacks_that_write_are_left_out():
    text = "--trainer.callbacks+=lightning.ModelCheckpoint --trainer.callbacks.dirpath /c"
    text += " --trainer.callbacks+=TQDMProgressBar --trainer.callbacks.refresh_rate=1"
    words, found = trial("lightning", text)
    assert words[3:5] == ["--trainer.callbacks+=TQDMProgressBar", "--trainer.callbacks.refresh_rate=1"]
    assert "/c" not in words and found.unknown == ()
    assert trial("lightning", "'--trainer.callbacks=[{class_path: ModelCheckpoint}]'")[1].unknown


UNKNOWN = [
    *("--my-dir out", "--weights w.pt", "--x /a/b", "--x ~/a", "--x ./a", "--x=../a", "--save_every 10", "--save", "--ckpt_freq 1"),
    *("--final_path p", "some/file", "hydra.dir=/x", "--checkpoint-dir c", "--trace-file t", "s3://bucket/x"),
    *("-o/x/out", "-o out", "--workdir w", "--savedir s", "--ckptdir s", "--modeldir m", "--outputs o", "--logfile w", "-L../x"),
]
KNOWN = [
    *("--lr 1e-3", "--x .5", "--gradient-checkpointing true", "--gradient_checkpoint", "--no-save", "--save false", "--output_size 10"),
    *(
        "--x {micro_batch}",
        "--config {settings}",
        "--config llama",
        "--my_dir {folder}/mine",
        "name=value",
        "fit",
        "--x -1",
        "--precision bf16-mixed",
    ),
    *("--path true", "--data_dir /data", "--model_name_or_path meta-llama/Llama-3"),
    *("--profile p", "-once", "-o 1"),
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_a_path_that_is_not_understood_is_unknown(text):
    assert len(trial("plain", text)[1].unknown) == 1


@pytest.mark.parametrize("text", KNOWN)
def test_what_is_no_path_is_not_unknown(text):
    words, found = trial("plain", text)
    assert found.unknown == () and words[2:] == shlex.split(text)


def test_a_name_of_something_that_exists_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not trial("plain", "--x thing")[1].unknown
    (tmp_path / "thing").mkdir()
    assert trial("plain", "--x thing")[1].unknown[0].value == "thing"


def test_a_name_counts_in_the_folder_in_which_the_program_starts(tmp_path):
    (tmp_path / "{proj}" / "runs").mkdir(parents=True)
    fronts = (f"env -C {tmp_path}/{{{{proj}}}} A=1", f"env -u B --chdir={tmp_path}/{{{{proj}}}}", f"srun env -C {tmp_path} -C {{{{proj}}}}")
    for front in fronts:
        found = harmless("plain", [*shlex.split(front), "python", "train.py", "--x", "runs"])
        assert [each.value for each in found.unknown] == ["runs"], front
    assert [each.value for each in harmless("plain", [*shlex.split(fronts[0]), "train", "--x", "runs"]).unknown] == ["runs"]


def test_a_glued_value_is_redirected_in_its_place():
    assert trial("plain", "-o/x/out", **{"-o": "redirect"})[0][2:] == ["-o{folder}/writes/o"]
    assert trial("plain", "-o/x/out=1", **{"-o": "read"})[0][2:] == ["-o/x/out=1"]


def test_an_abbreviation_of_an_option_that_writes_is_unknown():
    assert [each.why for each in trial("transformers", "--push_to_h")[1].unknown] == ["may abbreviate `--push_to_hub`"]
    assert trial("transformers", "--push_to_hub_organization x")[1].unknown == ()


def test_the_error_names_the_path_and_how_to_declare_it():
    _, found = trial("plain", "--my-dir out/x --other a/b")
    with pytest.raises(JobError, match=r"`--my-dir out/x` looks like a path; `.*` .*: it is not declared") as error:
        require_known(found.unknown)
    assert """--set 'command.paths."--my-dir"=redirect'""" in error.value.hint


@pytest.mark.parametrize("word", ["train.py", "conf.yml", "--allow-missing-checkpoint", "--save-first=true"])
def test_a_switch_or_a_script_is_not_proposed_to_be_redirected(word):
    with pytest.raises(JobError) as error:
        require_known(trial("plain", word)[1].unknown)
    assert f"""--set 'command.paths."{word.partition("=")[0]}"=read'""" in error.value.hint


@pytest.mark.parametrize("framework", ["plain", "accelerate", "deepspeed"])
def test_frequent_options_that_are_read_need_no_declaration(framework):
    names = ("pretrained_model_name_or_path", "actor_model_name_or_path", "critic_model_name_or_path", "image_folder", "vision_tower")
    assert trial(framework, " ".join(f"--{name} a/b" for name in names))[1].unknown == ()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("redirect", ["--my", "{folder}/writes/my"]), ("read", ["--my", "a/b"]), ("cache", ["--my", "{cache_folder}/my"]), ("disable", [])],
)
def test_a_user_declares_what_a_path_is(kind, words):
    found, line = trial("plain", "--my a/b", **{"--my": kind})
    assert found[2:] == words and line.unknown == ()


def test_a_user_declares_a_word_and_a_variable():
    found = harmless("plain", ["OUT=/x", "python", "train.py", "data/a.txt"], paths={"data/a.txt": "read", "$OUT": "read"})
    assert found.unknown == () and found.changes == ()
    assert [each.name for each in harmless("plain", ["OUT=/x", "python", "train.py"]).unknown] == ["$OUT"]


def test_a_variable_and_a_key_of_the_same_name_have_kinds_of_their_own():
    words = ["out=/x", "python", "train.py", "out=/x"]
    assert [each.name for each in harmless("plain", words, paths={"$out": "read"}).unknown] == ["out"]
    assert [each.name for each in harmless("plain", words, paths={"out": "read"}).unknown] == ["$out"]


def test_launchers_keep_their_words_but_write_nothing():
    line = "srun -N64 --container-image=/i.sqsh --container-mounts=/lustre --output=logs/%j.out python -u"
    line += " -m torch.distributed.run --log-dir /l"
    found = harmless("megatron", [*shlex.split(line), "-m", "pretrain", "--save", "/x"])
    text = " ".join(found.words)
    assert found.unknown == () and "--container-image=/i.sqsh --container-mounts=/lustre python -u -m torch.distributed.run" in text
    assert "logs/" not in text and "/l " not in text and "/x" not in text
    assert "--log-dir {folder}/writes/log-dir -m pretrain" in text


@pytest.mark.parametrize("start", ["-m accelerate launch", "-m accelerate.commands.launch", "-m deepspeed", "-m torch.distributed.run"])
def test_a_module_that_starts_the_program_has_its_own_options(start):
    found = harmless("plain", shlex.split(f"python {start} --log-dir /l train.py --log_dir /p"))
    assert found.words[-5:] == ("--log-dir", "{folder}/writes/log-dir", "train.py", "--log_dir", "{folder}/writes/log_dir")
    assert found.unknown == ()


def test_a_folder_in_front_starts_no_program(tmp_path):
    words = ["wrapper", "--results", str(tmp_path), "python", "train.py"]
    assert [each.name for each in harmless("plain", words).unknown] == ["--results"]
    assert harmless("plain", ["wrapper", "--quiet", sys.executable, "train.py"]).unknown == ()


@pytest.mark.parametrize("start", ["conda run -p", "mpirun --prefix", "mpirun -wdir", "apptainer exec --home", "uv run --cache-dir"])
def test_a_folder_that_a_starter_reads_is_known(start, tmp_path):
    words = [*start.split(), str(tmp_path), "python", "train.py"]
    assert harmless("plain", words).words == tuple(words) and harmless("plain", words).unknown == ()


def test_a_profiler_in_front_is_unknown():
    assert [each.name for each in harmless("plain", shlex.split("/opt/nsys profile -o x python train.py")).unknown] == ["nsys"]


def test_trackers_are_off_by_variables_also_where_the_line_sets_them():
    found = harmless("plain", ["WANDB_MODE=online", "NCCL_DEBUG_FILE=/x", "python", "train.py"])
    assert found.words[:2] == ("WANDB_MODE=disabled", "NCCL_DEBUG_FILE=/x") and found.unknown == ()
    assert found.environment["WANDB_MODE"] == "disabled" and found.environment["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert "HF_HUB_OFFLINE" not in found.environment


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        ("megatron", "--save /x --config run.py --lr 1"),
        ("megatron-bridge", "checkpoint.save=/x train.train_iters=5"),
        ("torchtitan", "--module llama3"),
    ],
)
def test_the_words_of_a_program_alone_are_those_of_its_line(framework, text):
    whole = harmless(framework, ["torchrun", "train.py", *shlex.split(text)])
    alone = harmless(framework, shlex.split(text))
    assert whole.words == ("torchrun", "train.py", *alone.words)
    assert (whole.changes, whole.unknown, whole.files) == (alone.changes, alone.unknown, alone.files)


def test_a_line_never_begins_with_an_option():
    assert "/x" not in harmless("megatron", ["--save", "/x"]).words
    assert "checkpoint.save=/x" not in harmless("megatron-bridge", ["checkpoint.save=/x"]).words


def test_words_for_steps_come_before_the_subcommands_of_torchtitan():
    words, _ = trial("torchtitan", "--module llama3 activation-checkpoint:full-ac")
    assert words[-1] == "activation-checkpoint:full-ac" and "--metrics.log_freq" in words


def test_older_releases_of_torchtitan_get_no_option_that_they_lack():
    words, found = trial("torchtitan", "--job.config_file /t.toml --checkpoint.enable")
    assert "--checkpoint.enable" not in words and not [word for word in words if word.startswith(("--profiler", "--dump"))]
    assert [(each.path, each.keys) for each in found.files] == [("/t.toml", "torchtitan")]


def test_options_of_the_search_space_are_not_stated_twice():
    found = harmless("transformers", ["python", "train.py", "--save_strategy", "steps"], elsewhere={"--save_strategy", "--logging_steps"})
    assert not {"--save_strategy", "--logging_steps"} & set(found.words)


DEEPSPEED = {
    "tensorboard": {"enabled": True, "output_path": "/tb"},
    "wandb": {"enabled": True},
    "flops_profiler": {"enabled": True, "output_file": "/f.txt"},
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "checkpoint": {"tag_validation": "Warn"},
    "train_batch_size": "{batch}",
}


def test_keys_of_deepspeeds_file_that_write_are_off():
    found = harmless_keys("deepspeed", DEEPSPEED)
    assert found.unknown == () and found.keys == {
        "tensorboard.enabled": False,
        "tensorboard.output_path": "{folder}/writes/tensorboard.output_path",
        "wandb.enabled": False,
        "flops_profiler.enabled": False,
        "flops_profiler.output_file": "{folder}/writes/flops_profiler.output_file.txt",
    }


def test_a_key_that_is_not_understood_is_unknown():
    content = {"zero_optimization": {"offload_param": {"nvme_path": "/local_nvme"}}}
    assert [each.name for each in harmless_keys("deepspeed", content).unknown] == ["zero_optimization.offload_param.nvme_path"]
    given = {"zero_optimization.offload_param.nvme_path": "read"}
    assert harmless_keys("deepspeed", content, paths=given).unknown == ()
    assert harmless_keys("", {"a": {"b": ["x/y"]}}).unknown


def test_a_lightning_file_keeps_the_callbacks_that_write_nothing():
    bar = {"class_path": "lightning.pytorch.callbacks.TQDMProgressBar", "init_args": {"refresh_rate": 1}}
    saver = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"dirpath": "/c"}}
    stopper = {"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss"}}
    content = {"trainer": {"callbacks": [bar, saver, stopper], "logger": {"class_path": "WandbLogger", "init_args": {"save_dir": "/w"}}}}
    assert harmless_keys("lightning", content).keys == {"trainer.callbacks": [bar], "trainer.logger": False}


def test_a_file_of_transformers_pushes_resumes_and_reports_nothing():
    content = {"push_to_hub": True, "resume_from_checkpoint": "/x/ck", "output_dir": "/x/o", "env": {"WANDB_MODE": "online", "A": "1"}}
    found = harmless_keys("transformers", {**content, "learning_rate": 1e-4, "deepspeed": "ds.json", "model_name_or_path": "a/b"})
    assert (
        found.unknown == ()
        and [each.path for each in found.files] == ["ds.json"]
        and found.keys
        == {
            "push_to_hub": False,
            "resume_from_checkpoint": None,
            "output_dir": "{folder}/writes/output_dir",
            "env.WANDB_MODE": "disabled",
        }
    )
    assert [each.name for each in harmless_keys("transformers", {"env": {"OUT": "/x"}}).unknown] == ["env.OUT"]


def test_a_file_of_transformers_keeps_its_strategy_of_evaluation_and_evaluates_nothing():
    content = {"eval_strategy": "steps", "eval_delay": 5, "load_best_model_at_end": True, "metric_for_best_model": "loss"}
    found = harmless_keys("transformers", content)
    assert found.keys == {"eval_delay": 1_000_000_000, "load_best_model_at_end": False}
    assert harmless_keys("transformers", {"eval_strategy": "epoch"}).keys == {"eval_delay": 1_000_000_000}


def test_a_table_in_the_place_of_a_file_is_examined():
    content = {"deepspeed": {"wandb": {"enabled": True}, "zero_optimization": {"stage": 1}, "mine": "/x"}}
    assert [each.name for each in harmless_keys("transformers", content).unknown] == ["deepspeed.wandb.enabled", "deepspeed.mine"]
    given = {"deepspeed.wandb.enabled": "read", "deepspeed.mine": "read"}
    assert harmless_keys("transformers", content, paths=given).unknown == ()


def test_callbacks_that_stay_are_examined():
    own, saver = {"class_path": "my.Saver", "init_args": {"out": "/x/o"}}, {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "/c"}}
    content = {"trainer": {"callbacks": [own, saver]}}
    assert [each.name for each in harmless_keys("lightning", content).unknown] == ["trainer.callbacks"]
    assert harmless_keys("lightning", content, paths={"trainer.callbacks": "read"}).unknown == ()
    assert trial("lightning", "'--trainer.callbacks=[{class_path: my.Saver, init_args: {out: /x/o}}]'")[1].unknown


def test_accelerates_file_names_the_one_of_deepspeed():
    found = harmless_keys("accelerate", {"deepspeed_config": {"deepspeed_config_file": "ds.json"}, "mixed_precision": "no"})
    assert [(each.path, each.keys) for each in found.files] == [("ds.json", "deepspeed")] and found.unknown == ()


BALANCE = [
    ("megatron", "--moe-router-force-load-balancing"),
    ("megatron-bridge", "model.moe_router_force_load_balancing=true"),
    ("torchtitan", "--debug.moe_force_load_balance"),
]


@pytest.mark.parametrize(("framework", "option"), BALANCE)
def test_experts_get_balanced_tokens_in_trials_alone(framework, option):
    words = shlex.split(START.get(framework, "python train.py"))
    mixture, dense = harmless(framework, words, experts=True), harmless(framework, words)
    assert option in mixture.words and option not in dense.words
    assert [change.original for change in mixture.changes if option in change.trial] == [()], "the winner's line has no such word"
    again = harmless(framework, mixture.words, experts=True)
    assert again.words == mixture.words and again.changes == ()


@pytest.mark.parametrize("stated", ["--debug.no-moe_force_load_balance", "--job.config_file=debug.toml"])
def test_a_line_that_declines_balance_and_an_older_release_stay(stated):
    words = [*shlex.split(START["torchtitan"]), stated]
    assert "--debug.moe_force_load_balance" not in harmless("torchtitan", words, experts=True).words
