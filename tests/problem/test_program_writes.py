"""The source of a program shows what it writes although its line names no path."""

import pytest

from oppa.errors import JobError, UndeclaredError
from oppa.problem.command import LaunchCommand
from oppa.problem.harmless_command import harmless_command
from oppa.problem.program_writes import program_writes
from oppa.problem.space import SearchSpace

PLACE = "{folder}/writes"


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Return the words that a trial adds to a program of some source."""
    monkeypatch.chdir(tmp_path)

    def words(source, *own, paths=None, **files):
        for name, text in {"train": source, **files}.items():
            (tmp_path / f"{name}{'.py' if name == 'train' else '.yaml'}").write_text(text)
        line = ("python", "train.py", "--lr", "1", *own)
        command = LaunchCommand(argv=line)
        found = harmless_command(
            command, SearchSpace(name="plain", parameters=(), constraints=(), facts={}), framework="plain", paths=paths or {}
        )
        return list(found.argv[4:]), found

    return words


@pytest.mark.parametrize("form", ["p.add_argument('--out_dir', {})", "@click.option('-o', '--out_dir', {})"])
@pytest.mark.parametrize("default", ["default='out'", "default=Path('out')", "default=os.environ.get('OUT', 'out')"])
def test_a_default_that_is_written_is_redirected_unless_the_line_states_the_option(form, default, trial):
    source = form.format(default) + ("\ndef main(): pass\n" if form.startswith("@") else "")
    assert trial(source)[0] == [f"--out_dir={PLACE}/out_dir"]
    assert trial(source, "--out-dir", "x")[0] == ["--out-dir", f"{PLACE}/out-dir"]
    assert trial(source)[1].originals.argv[4:] == ()


@pytest.mark.parametrize("default", ["None", "''", "3", "True"])
def test_a_default_that_is_no_text_adds_nothing(default, trial):
    assert trial(f"p.add_argument('--out_dir', default={default})")[0] == []


def test_a_default_of_unknown_use_is_refused_until_it_is_declared(trial):
    source = "p.add_argument('--checkpoint-dir', default='./ckpt')\np.add_argument('--data-dir', default='./data')"
    with pytest.raises(JobError, match=r"`--checkpoint-dir \./ckpt` is the default of the program") as refused:
        trial(source)
    assert """--set 'command.paths."--checkpoint-dir"=redirect'""" in refused.value.hint and "--data-dir" not in refused.value.hint
    assert trial(source, paths={"--checkpoint-dir": "redirect"})[0] == [f"--checkpoint-dir={PLACE}/checkpoint-dir"]
    assert trial(source, paths={"--checkpoint-dir": "read"})[0] == []


def test_a_file_of_settings_that_is_a_default_is_examined(trial):
    words, found = trial("p.add_argument('--config', default='c.yaml')", c="out_dir: mine\n")
    assert words == ["--config={harmless_c}"] and found.files[0].trial_keys == {"out_dir": f"{PLACE}/out_dir"}


def test_global_variables_are_options_of_a_program_with_a_configurator(trial):
    source = "out_dir = 'out'\ndataset = 'x'\nexec(open('configurator.py').read())\ntorch.save(c, os.path.join(out_dir, 'c.pt'))"
    assert trial(source)[0] == [f"--out_dir={PLACE}/out_dir"]


WRITES = [
    "torch.save(x, 'a.pt')",
    "OUT = 'a.pt'\ntorch.save(x, f'{OUT}.1')",
    "open('a.pt', 'w')",
    "Path('a.pt').write_text('')",
    "model.save_pretrained(os.path.join('a.pt', str(step)))",
    "logging.FileHandler(filename='a.pt')",
    "shutil.rmtree('a.pt')",
    "SummaryWriter('a.pt')",
    "TrainingArguments('a.pt', save_steps=5)",
    "SFTConfig(output_dir='a.pt')",
    "Accelerator(cpu=True, project_dir='a.pt')",
    "pl.Trainer(max_epochs=1, default_root_dir='a.pt')",
]


@pytest.mark.parametrize("source", WRITES)
def test_a_path_in_the_code_is_refused_unless_the_program_is_declared(source, trial):
    with pytest.raises(UndeclaredError, match=r"`train\.py` writes `a\.pt` \(line \d\), which no option states") as refused:
        trial(source)
    assert """--set 'command.paths."train.py"=read'""" in refused.value.hint
    assert trial(source, paths={"train.py": "read"})[0] == []


@pytest.mark.parametrize(
    "source", ["torch.save(x, args.out)", "open('a.pt')", "open('a.pt', 'rb')", "open('/dev/null', 'w')", "def f(p): torch.save(x, p)"]
)
def test_what_only_a_run_knows_and_what_is_read_is_not_refused(source, trial):
    assert trial(source)[0] == []


@pytest.mark.parametrize("argv", [["train"], ["python", "-m", "pkg.none"], ["--lr", "1"], ["python", "gone.py"]])
def test_a_program_without_a_source_shows_nothing(argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert program_writes(argv).paths == ()
