"""A path is known through variables, parameters and attributes: trials do not overwrite what a program's code names."""

import ast

import pytest

from oppa.errors import UndeclaredError
from oppa.problem.command import LaunchCommand
from oppa.problem.describe import changes
from oppa.problem.harmless_command import harmless_command
from oppa.problem.job import load_job
from oppa.problem.source_names import SourceNames
from oppa.problem.space import SearchSpace


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Return the command of trials of a program of some source."""
    monkeypatch.chdir(tmp_path)

    def command(source, *own, paths=None):
        (tmp_path / "train.py").write_text(source)
        space = SearchSpace(name="plain", parameters=(), constraints=(), facts={})
        return harmless_command(LaunchCommand(argv=("python", "train.py", *own)), space, framework="plain", paths=paths or {})

    return command


JOB = """
batch.global_batch = 8
cluster = { devices_per_host = 2, memory_limit = "1 GiB" }
command.framework = "plain"
"""
NOTE = "train.py: line 2 writes a path that oppa cannot see"
WRITTEN = [
    "def main():\n    out = 'a'\n    torch.save(x, f'{out}/{step}.pt')",
    "def main():\n    out = 'b'\n    def save(): torch.save(x, out)\nout = 'a'\ntorch.save(x, out)",
    "OUT = Path('a')\nfor step in steps:\n    torch.save(x, OUT / 'last.pt')",
    "out = os.path.join('a', args.name)\nout = os.path.join(out, 'x')\ntorch.save(x, out)",
    "if big:\n    out = 'a'\nelse:\n    out = 'b'\ntorch.save(x, out)",
    "def save(state, filename='a'):\n    torch.save(state, filename)",
    "def save(state, filename='b'):\n    torch.save(state, filename)\nsave({}, filename='a')",
    "class T:\n    def save(self):\n        PATH = 'a'\n        torch.save(x, PATH)",
    "class T:\n    def __init__(self, p): self.path = p\n    def save(self): torch.save(x, self.path)\ndef main(p='a'): T(p)",
    "class C:\n    out: str = 'a'\ncfg = C()\ntorch.save(x, cfg.out)",
    "cfg = {'out': 'a'}\ntorch.save(x, cfg['out'])",
    "torch.save(x, 'a{}'.format(step))",
    "torch.save(x, '%s/x' % 'a')",
    "torch.save(x, Path(__file__).parent / 'a')",
    "def where(): return os.path.join('a', name)\ntorch.save(x, where())",
    "Path('a').open('w')",
    "shutil.copyfile('b', 'a')",
    "os.makedirs('a', exist_ok=True)",
]


@pytest.mark.parametrize("source", WRITTEN)
def test_a_path_that_the_source_binds_is_refused_unless_the_program_is_declared(source, trial):
    with pytest.raises(UndeclaredError, match=r"`train\.py` writes `a` \(line \d\), which no option states"):
        trial(source)
    assert trial(source, paths={"train.py": "read"}).originals.changes == ()


OPTION = "p.add_argument('--out')\nargs = p.parse_args()\n"
SAFE = [
    OPTION + "torch.save(x, os.path.join(args.out, 'x.pt'))",
    OPTION + "class T:\n    def __init__(self, out): self.out = out\n    def save(self): torch.save(x, self.out)\nT(args.out)",
    OPTION + "def save(x, path): torch.save(x, path)\nsave({}, args.out + '/x.pt')",
    "@click.option('--out')\ndef main(out): torch.save(x, out)",
    "torch.save(x, io.BytesIO())",
    "with open(p) as f: torch.save(x, f)",
    "with tempfile.TemporaryDirectory() as d: torch.save(x, f'{d}/x')",
    "os.makedirs('data/raw')",
    "open(sys.argv[1], 'w')",
    "torch.load(path)",
]


@pytest.mark.parametrize("source", SAFE)
def test_the_value_of_an_option_and_a_temporary_file_need_no_note(source, trial):
    assert trial(source).originals.changes == ()


def test_a_path_that_only_a_run_knows_is_noted_once(trial, tmp_path):
    trial("torch.save(x, cfg.output_dir)\ntorch.save(x, str(run.name) + '.pt')\n")
    (tmp_path / "job.toml").write_text(JOB)
    line = ["python", "train.py", "--batch", "{micro_batch}"]
    assert changes(load_job(tmp_path / "job.toml", argv=line)) == ["train.py: lines 1, 2 write paths that oppa cannot see"]
    assert changes(load_job(tmp_path / "job.toml", argv=[*line, "--output-dir", "x"]))[1:] == [NOTE]


def test_a_path_that_is_given_to_an_option_later_is_its_default(trial):
    source = OPTION + "out = args.out or 'runs/x'\ntorch.save(x, out)"
    assert trial(source, paths={"--out": "redirect"}).argv[2:] == ("--out={folder}/writes/out",)
    with pytest.raises(UndeclaredError, match="`--out runs/x` is the default of the program"):
        trial(source)


@pytest.mark.parametrize(
    "source", ["a = b\nb = a", "def f(): return f()\na = f()", "def f(p): f(p)\na = f(1)", "a = " + "+".join("abc" * 99)]
)
def test_names_that_refer_to_each_other_are_unknown(source):
    tree = ast.parse(source)
    found = SourceNames(tree).beginning(tree.body[-1].value)
    assert found.texts == () and found.unseen
