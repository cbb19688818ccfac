"""A file of settings that a program opens itself is examined as one that the line names."""

import pytest

from oppa.errors import UndeclaredError
from oppa.problem.command import LaunchCommand
from oppa.problem.harmless_command import harmless_command
from oppa.problem.space import SearchSpace

PLACE = "{folder}/writes"
HYDRA = "@hydra.main(version_base=None, config_path='conf', config_name='config')\ndef main(cfg): torch.save(x, cfg.output_dir)"
OMEGA = "cfg = OmegaConf.merge(OmegaConf.load('config.yaml'), OmegaConf.from_cli())\ntorch.save(x, cfg.output_dir)"
FIXED = "path = 'config.yaml'\ncfg = yaml.safe_load(open(path))\ntorch.save(x, cfg['output_dir'])"
SETTINGS = "output_dir: runs\ndata: {path: /d}\npush_to_hub: true\n"
READ = {"data.path": "read"}


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Return the words of trials after the program, and what trials change."""
    monkeypatch.chdir(tmp_path)

    def words(source, *own, paths=None, **files):
        (tmp_path / "train.py").write_text(source)
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        space = SearchSpace(name="plain", parameters=(), constraints=(), facts={})
        found = harmless_command(LaunchCommand(argv=("python", "train.py", *own)), space, framework="plain", paths=paths or {})
        return list(found.argv[2:]), [(each[0], each[3]) for each in found.originals.changes]

    return words


def test_keys_of_omegaconf_are_stated_in_the_line(trial):
    with pytest.raises(UndeclaredError, match=r"`data\.path /d` looks like a path"):
        trial(OMEGA, config=SETTINGS)
    words, changes = trial(OMEGA, paths=READ, config=SETTINGS)
    assert words == [f"output_dir={PLACE}/output_dir", "push_to_hub=false"]
    assert [name for name, _ in changes] == ["output_dir", "push_to_hub"]
    own = trial(OMEGA, "output_dir=mine", paths=READ | {"output_dir": "redirect"}, config=SETTINGS)[0]
    assert own == [f"output_dir={PLACE}/output_dir", "push_to_hub=false"], "a key of the line is examined with the line"


def test_keys_of_hydra_are_stated_in_the_line_with_the_folder_of_its_runs(trial, tmp_path):
    words, _ = trial(HYDRA, paths=READ, conf__config=SETTINGS)
    assert words == [f"output_dir={PLACE}/output_dir", "push_to_hub=false", f"hydra.run.dir={PLACE}/hydra"]
    (tmp_path / "conf" / "config.yaml").unlink()
    assert ("train.py", "reads config.yaml, which oppa cannot see") in trial(HYDRA)[1]


def test_a_file_that_hydra_composes_is_examined_as_the_line_chooses_it(trial):
    files = {"conf__config": "defaults: [_self_, {io: near}]\nlr: 1\n", "conf__io__near": "lr: 2\n", "conf__io__far": "log_dir: /x\n"}
    assert trial(HYDRA, **files)[0] == [f"hydra.run.dir={PLACE}/hydra"]
    with pytest.raises(UndeclaredError, match=r"`io\.log_dir /x` looks like a path"):
        trial(HYDRA, "io=far", **files)
    assert trial(HYDRA, "--config-name", "io/far", **files)[0][-2:] == [f"log_dir={PLACE}/log_dir", f"hydra.run.dir={PLACE}/hydra"]


def test_a_file_that_trials_cannot_change_is_refused_if_it_names_an_output(trial):
    with pytest.raises(
        UndeclaredError, match=r"`train\.py` reads `config\.yaml`, which states `output_dir runs`, `push_to_hub true`"
    ) as refused:
        trial(FIXED, config=SETTINGS)
    assert """`--set 'command.paths."config.yaml"=read'`""" in refused.value.hint
    note = ("train.py", "reads config.yaml, which trials do not change")
    assert note in trial(FIXED, paths={"config.yaml": "read"}, config=SETTINGS)[1]
    assert trial("cfg = yaml.safe_load(open('config.yaml'))", config="lr: 1\ndata: {path: /d}\n") == ([], [note])


def test_a_file_that_the_line_may_name_counts_unless_it_names_another(trial):
    source = "path = 'config.yaml'\nif len(sys.argv) > 1: path = sys.argv[1]\ncfg = yaml.safe_load(open(path))"
    with pytest.raises(UndeclaredError, match=r"reads `config\.yaml`"):
        trial(source, config=SETTINGS)
    assert trial(source, "other.yaml", config=SETTINGS, other="lr: 1\n") == (["other.yaml"], [])


@pytest.mark.parametrize("source", ["json.load(open('vocab.json'))", "open('gone.yaml')", "open('config.yaml', 'w')", "open(name)"])
def test_data_and_what_is_not_here_are_no_settings(source, trial, tmp_path):
    (tmp_path / "vocab.json").write_text('{"output_dir": "/x"}')
    assert trial(source, paths={"train.py": "read"}) == ([], [])
