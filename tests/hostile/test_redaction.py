"""No secret reaches what oppa stores or shows: launch lines with one are refused, and trials get theirs from the environment."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.errors import JobError
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.redaction import HIDDEN, redacted
from oppa.report.record import provenance
from oppa.trials import environments
from oppa.tuning.formats import exports
from tests.command_line import Oppa
from tests.own_program import JOB, PROGRAM

KEY = "0123456789abcdef0123456789abcdef01234567"
HF, OPENAI, GITHUB, AWS = f"hf_{'a1' * 17}", f"sk-proj-{'a1' * 20}", f"ghp_{'a1' * 18}", "AKIAIOSFODNN7EXAMPLE"
JWT = f"eyJ{'a1' * 9}.eyJ{'b2' * 9}.{'c3' * 9}"
SECRET = (
    ("env", "WANDB_API_KEY=hunter2"),
    ("env", "AWS_SECRET_ACCESS_KEY=hunter2"),
    ("env", "MY_TOKEN_2=hunter2"),
    ("env", "PASS=hunter2"),
    ("env", "KEY=hunter2"),
    ("env", f"TRACKER={KEY}"),
    ("env", "DB_PASSWORD_PROD=1234"),
    ("env", "SSH_PRIVATE_KEY=hunter2"),
    ("env", "GOOGLE_CREDENTIALS=hunter2"),
    ("--password", "hunter2"),
    ("--password=hunter2",),
    ("--passwd", "hunter2"),
    ("--api-key", "hunter2"),
    ("--apikey=hunter2",),
    ("--hf-token", "hunter2"),
    ("--auth", "me:hunter2"),
    ("--cookie", "session=hunter2"),
    ("--client-secret", "hunter2"),
    ("+logger.wandb.apiKey=hunter2",),
    ("--wandb-key", KEY),
    ("--stop-token", "a1b2c3d4e5f6hunter2"),
    ("https://x.example.org/data?sv=1&sig=hunter2",),
    ("https://x.example.org/data?X-Amz-Signature=hunter2",),
    ("curl", "-H", "Authorization: Bearer hunter2"),
    ("--config", '{"api_key": "hunter2"}'),
    ("sh", "-c", "export HF_TOKEN=hunter2; exec python train.py"),
    ("sh", "-c", "exec python train.py --api-key 'hunter2' --lr 1"),
    ("https://me:hunter2@example.org/data",),
    ("--data", f"https://{GITHUB}@github.com/x/y"),
    *((word,) for word in (HF, OPENAI, GITHUB, AWS, JWT)),
)
PLAIN = (
    ("env", f"GIT_COMMIT={KEY}"),
    ("env", "PASS=2"),
    ("--key", "abc"),
    ("--pass", "forward"),
    ("--tokenizer", "gpt2"),
    ("--tokenizer-type", "HuggingFaceTokenizer"),
    ("--num-tokens", "4096"),
    ("--max_token=2048",),
    ("--pad-token", "pad"),
    ("--mask-token", "<mask>"),
    ("--moe-token-dispatcher-type", "alltoall"),
    ("--author", "me"),
    ("--authorized",),
    ("--sort-key", "length"),
    ("--password-file", "/run/secrets/x"),
    ("--use-auth", "--lr", "3e-4"),
    ("--token", "{tp}"),
    ("--hf-token", "$HF_TOKEN"),
    ("sh", "-c", 'exec python train.py --api-key "$WANDB_API_KEY" --token "${T:?}"'),
    ("--rdzv-endpoint=host:29400", "--master-port=29500"),
    ("http://localhost:6006/a@b",),
    ("task-aaaaaaaaaaaaaaaaaaaaaaaaaaaa",),
    ("--data", "s3://bucket/key=value"),
    ("--monkey", KEY),
    ("--hf-token", "/run/secrets/hf"),
    ("--hf-token", "@/run/secrets/hf"),
    ("--hf_token", "env:HF_TOKEN"),
    ("--credentials", "/home/me/.aws/credentials"),
    ("--api_key_env", "WANDB_API_KEY"),
    ("--access-key-id", "mine"),
    ("sh", "-c", "HF_TOKEN=`cat x` exec python train.py"),
    ("sh", "-c", 'exec python train.py --token "${HF_TOKEN:?x y}"'),
    *(
        (f"--{name}-token", value)
        for name, value in (("stop", "END"), ("eod", "EOD"), ("split", "newline"), ("separator", ";"), ("fim", "FIM"))
    ),
    ("--data.eot_token=<|eot|>",),
    ("--use-auth-token", "yes"),
    ("dataset.auth=public", "s3.auth=iam", "logger.token=disabled"),
    ("--config", '{"auth": {"type": "none"}}'),
    ("--dataset-key", "a_column_with_a_name_that_is_long_1"),
    ("--name", "sk-a-run-with-quite-a-long-name"),
    ("--secret-level", "2"),
)


@pytest.mark.parametrize("words", SECRET, ids=range(len(SECRET)))
def test_a_secret_is_hidden_and_refused_on_a_launch_line(words: tuple[str, ...], tmp_path: Path) -> None:
    hidden = shlex.join(redacted(words))
    assert HIDDEN in hidden and not any(secret in hidden for secret in ("hunter2", "1234", KEY[:8], "a1a1", AWS))
    (tmp_path / "own.toml").write_text(JOB)
    escaped = [word.replace("{", "{{").replace("}", "}}") for word in words]
    with pytest.raises(JobError, match="the launch line has a secret") as refusal:
        load_job(tmp_path / "own.toml", argv=(sys.executable, "train.py", *escaped, "{micro_batch}"))
    assert "hunter2" not in refusal.value.message and "environment variable" in refusal.value.hint


@pytest.mark.parametrize("words", PLAIN, ids=range(len(PLAIN)))
def test_what_is_no_secret_stays(words: tuple[str, ...], tmp_path: Path) -> None:
    assert redacted(words) == list(words)
    (tmp_path / "own.toml").write_text(JOB)
    escaped = [word if word == "{tp}" else word.replace("{", "{{").replace("}", "}}") for word in words]
    assert load_job(tmp_path / "own.toml", argv=(sys.executable, "train.py", *escaped, "{micro_batch}")).command


@pytest.mark.parametrize(
    "tables",
    [
        '[command]\nargv = ["python", "train.py"]\n[command.arguments]\nmicro_batch = ["--mb={micro_batch}", "--api-key=hunter2"]\n',
        '[command]\nargv = ["python", "train.py"]\n[command.arguments]\nmicro_batch = { 1 = ["--password", "hunter2"], 2 = [], 4 = [] }\n',
        '[command]\nargv = ["python", "{c}", "{micro_batch}"]\n[command.files.c]\npath = "c.json"\nkeys = { "hub.api_key" = "hunter2" }\n',
    ],
    ids=["words", "by value", "file"],
)
def test_no_part_of_a_command_has_a_secret(tables: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "own.toml").write_text(tables + JOB)
    with pytest.raises(JobError, match="has a secret") as refusal:
        load_job(tmp_path / "own.toml")
    assert "hunter2" not in refusal.value.message


@pytest.mark.parametrize(
    ("knob", "line"),
    [
        ("", ("--api-key", "{api_key=hunter2:hunter2,x}")),
        ("", ("{wandb_token=hunter2:hunter2,x}",)),
        ("", ("--api-key={k=hunter2:hunter2,x}",)),
        ("", ("--password", "{k=hunter2:hunter2,x}")),
        ("", ("{k=ghp_012345678901234567890123456789:ghp_012345678901234567890123456789,x}",)),
        ('values = ["hunter2", "x"]\nenv = "WANDB_API_KEY"', ()),
        ('values = ["hunter2", "x"]\nwords = "--api-key {k}"', ()),
        ('values = ["a", "b"]\nwords = ["--password=hunter2", "{k}"]', ()),
    ],
)
def test_no_choice_of_a_knob_is_a_secret(knob: str, line: tuple[str, ...], tmp_path: Path) -> None:
    """Studies and tables hold the values of knobs."""
    (tmp_path / "job.toml").write_text("cluster = {devices_per_host = 1}\n" + (f"[space.parameters.k]\n{knob}\n" if knob else ""))
    with pytest.raises(JobError, match="the launch line has a secret") as refusal:
        load_job(tmp_path / "job.toml", argv=["train", "--n", "{n=1:1,2}", *line])
    assert "hunter2" not in refusal.value.message and "ghp_" not in refusal.value.message


def test_redacting_a_long_word_takes_linear_time() -> None:
    for word in ("a" * 200_000, "a." * 100_000, "--a" * 60_000, "://" + "a" * 200_000, "eyJ" * 60_000, "a =" * 60_000):
        assert redacted(["x", word]) == ["x", word]


def test_the_command_line_of_a_record_hides_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/oppa", "tune", "job.toml", "--set", "x.api_key=hunter2", "https://me:hunter2@example.org"])
    assert provenance()["command"] == "`oppa tune job.toml --set 'x.api_key=***' 'https://***@example.org'`"


def test_a_module_s_command_line_can_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/lib/oppa/__main__.py", "tune", "job.toml"])
    assert provenance()["command"] == "`python -m oppa tune job.toml`"


def test_the_log_of_an_environment_hides_the_login_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPPA_ENVIRONMENTS", str(tmp_path / "environments"))
    wanted = environments.Environment(runner=tmp_path, path=tmp_path / "environments" / "x")
    environments._run(wanted, ["true", "--index-url", "https://me:hunter2@example.org/simple"], "trying")
    log = (wanted.path / environments.LOG).read_text()
    assert "https://***@example.org/simple" in log and "hunter2" not in log


def test_a_secret_of_a_runner_stays_in_the_environment_of_who_runs_the_script(tmp_path: Path) -> None:
    """The exported script says which variable it needs, and passes it on."""
    shutil.copytree(Path(__file__).parents[2] / "runners" / "torch", tmp_path / "runner")
    manifest = tmp_path / "runner" / "runner.toml"
    manifest.write_text(manifest.read_text() + '\n[environment]\nHF_TOKEN = "hunter2"\nLEVEL = "3"\n')
    job = 'model = {preset = "tiny-1m"}\nbatch = {global_batch = 8}\nrunner = {name = "./runner"}\n'
    (tmp_path / "job.toml").write_text(job + 'cluster = {devices_per_host = 1, device = "CPU", memory_limit = "1 GiB"}\n')
    problem = load_job(tmp_path / "job.toml")
    files = exports(problem, Configuration(dp=1, global_batch=8, micro_batch=1))["torchrun"]
    assert isinstance(files, dict) and "hunter2" not in "".join(files.values())
    lines = [line for line in files["run.sh"].splitlines() if line.startswith("export HF_TOKEN=")]
    check = "\n".join([*lines, 'test "$HF_TOKEN" = mine'])
    assert subprocess.run(["sh", "-c", check], env={"HF_TOKEN": "mine"}).returncode == 0
    without = subprocess.run(["sh", "-c", check], env={}, capture_output=True, text=True)
    assert without.returncode != 0 and "HF_TOKEN" in without.stderr


USES = PROGRAM + "\nimport os\nassert os.environ['WANDB_API_KEY'] == sys.argv[3]\n"


@pytest.mark.slow
def test_a_secret_reaches_trials_and_the_winner_by_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the study, of its report and of its exports has it."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    oppa = Oppa(tmp_path)
    (tmp_path / "own.toml").write_text(JOB)
    (tmp_path / "program.py").write_text(USES.replace("int(sys.argv[2])", "6"))
    line = ("--", "sh", "-c", f'exec {sys.executable} program.py {{micro_batch}} 6 "$WANDB_API_KEY"')
    tuned = oppa("tune", "own.toml", "--study", "s", "--json", *line)
    shown = [oppa("show", "s").stdout, oppa("report", "s").stdout, oppa("export", "s", "--to", "torchrun", "--out", "x").stdout]
    assert KEY not in tuned.stdout + tuned.stderr + "".join(shown)
    texts = {path: path.read_bytes() for folder in ("s", "x") for path in (tmp_path / folder).rglob("*") if path.is_file()}
    assert len(texts) > 5 and not [path for path, text in texts.items() if KEY.encode() in text]
    script = tmp_path / "s" / "best" / "run.sh"
    assert subprocess.run(["sh", script], cwd=tmp_path, capture_output=True).returncode == 0, "it runs again as it was tuned"
