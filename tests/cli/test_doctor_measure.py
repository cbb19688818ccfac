"""`oppa doctor --measure` writes a hardware file that a job uses, and refuses what it cannot use before it measures."""

import json

import pytest


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--out", "my.toml"), 2, "`--out my.toml` has no effect without `--measure`"),
        (("--ranks", "2"), 2, "`--ranks 2` has no effect without `--measure`"),
        (("--figure-time", "1 s"), 2, "`--figure-time 1 s` has no effect without `--measure`"),
        (("--measure", "--out", "my"), 2, "`--out my` is no TOML file"),
        (("--measure", "--out", "none/my.toml"), 2, "its folder does not exist"),
        (("--measure", "--out", "job.toml"), 2, "`job.toml` exists"),
        (("--measure", "--figure-time", "0 s"), 2, "is out of range"),
        (("--measure", "--figure-time", "2"), 2, "2"),
        (("--measure", "--ranks", "0"), 2, "--ranks"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(arguments, code, said, oppa) -> None:
    assert said in oppa("doctor", *arguments, code=code).stderr


@pytest.mark.slow
def test_a_job_predicts_with_the_figures_that_were_measured(oppa) -> None:
    measured = oppa("doctor", "--measure", "--ranks", 2, "--figure-time", "20ms", "--out", "mine.toml")
    assert "matrix product, fp32" in measured.stdout and "catalogue (CPU)" in measured.stdout and "all-reduce of 8 MiB" in measured.stdout
    assert 'hardware = "mine.toml"' in measured.stderr
    text = (oppa.folder / "mine.toml").read_text()
    slow = "".join("fp32 = 1e6\n" if line.startswith("fp32") else f"{line}\n" for line in text.splitlines())
    job = (oppa.folder / "job.toml").read_text()
    times = []
    for name, content in (("mine.toml", text), ("slow.toml", slow)):
        (oppa.folder / name).write_text(content)
        (oppa.folder / "job.toml").write_text(job.replace('device = "CPU"', f'device = "CPU"\nhardware = "{name}"'))
        times.append(json.loads(oppa("predict", "job.toml", "--json").stdout.splitlines()[0])["predicted_step_time_s"])
    assert times[1] > 100 * times[0]


@pytest.mark.slow
def test_a_measurement_as_json_has_every_repeat(oppa) -> None:
    values = json.loads(oppa("doctor", "--measure", "--ranks", 1, "--figure-time", "20ms", "--json").stdout)
    assert (values["device"], values["known_device"], values["devices_per_host"], values["file"]) == ("CPU", "CPU", 1, None)
    assert {each["what"] for each in values["figures"]} == {"matmul", "memory"}
    assert all(each["low"] <= each["median"] <= each["high"] and len(each["seconds"]) == 5 for each in values["figures"])
