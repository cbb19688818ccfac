"""Test the installed form: both wheels, each in an environment of its own, away from the checkout.

The environment of `oppa-tuner` has the dependencies of this one. That of `oppa-client` has nothing else.

python tests/installed.py dist
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 4}
cluster = {devices_per_host = 2, device = "CPU", memory_limit = "1 GiB"}
runner = {name = "torch"}
limits = {q_min = 2, q_max = 3, repeats = 3}
"""
EXPECTED_IN_SDIST = (
    "pyproject.toml",
    "README.md",
    "Makefile",
    "constraints.txt",
    "requirements/torch.txt",
    "tests/installed.py",
    "client/oppa_client/trial.py",
    "client/pyproject.toml",
)


def main(dist: Path) -> None:
    """Install the wheels of `dist`, and use them as a user would."""
    (wheel,) = dist.resolve().glob("oppa_tuner-*.whl")
    (sdist,) = dist.resolve().glob("oppa_tuner-*.tar.gz")
    (client,) = dist.resolve().glob("oppa_client-*.whl")
    check_sdist(sdist)
    check_typed(wheel, "oppa/py.typed", "oppa/_catalog/client/oppa_client/py.typed")
    check_typed(client, "oppa_client/py.typed")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        report_steps(client, home)
        venv.create(home / "env")
        install(home / "env", "--no-deps", wheel, cwd=home)
        (site,) = (home / "env" / "lib").glob("python3*/site-packages")
        (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
        use(home / "env" / "bin" / "oppa", home)
    print(f"installed form of {wheel.name} and {client.name} works")


def report_steps(client: Path, home: Path) -> None:
    """Report the steps of a trial from an environment that has the client alone."""
    venv.create(home / "program")
    install(home / "program", client, cwd=home)
    python = home / "program" / "bin" / "python"
    trial = home / "trial"
    trial.mkdir()
    (trial / "trial.json").write_text(json.dumps({"steps": 2, "configuration": {"dp": 1, "tp": 1, "pp": 1}}))
    steps = "import oppa_client; trial = oppa_client.open_trial(); print(trial and [trial.step(0.1, loss=1.0) for _ in range(2)])"
    assert run(python, "-c", steps, cwd=home) == "None\n"
    assert run(python, "-c", steps, cwd=home, OPPA_TRIAL=str(trial)) == "[True, False]\n"
    assert json.loads((trial / "outcome.json").read_text())["outcome"] == "completed"


def use(oppa: Path, home: Path) -> None:
    """The first commands of a new user."""
    assert "tune" in run(oppa, "--help", cwd=home)
    where = run(oppa.with_name("python"), "-c", "import oppa.catalog; print(oppa.catalog.root())", cwd=home)
    assert where.strip().endswith("site-packages/oppa/_catalog"), where
    client = run(oppa.with_name("python"), "-c", "import oppa.catalog; print(*oppa.catalog.client().iterdir())", cwd=home)
    assert client.strip().endswith("site-packages/oppa/_catalog/client/oppa_client"), client
    hint = run(oppa.with_name("python"), "-c", "from oppa import catalog; print(catalog.install_hint('peers'))", cwd=home)
    assert "optuna>=5" in hint and "xgboost-cpu" in hint, hint
    assert " oppa" not in hint, hint
    assert "<script>" in run(
        oppa.with_name("python"), "-c", "import oppa.control.service.page; print(oppa.control.service.page.page())", cwd=home
    )
    refused = subprocess.run([str(oppa), "bench", "goodput", "--run"], cwd=home, capture_output=True, text=True, check=False)
    assert refused.returncode == 3 and "needs a checkout" in refused.stderr, refused
    run(oppa, "init", "job.toml", cwd=home)
    assert "configurations" in run(oppa, "space", "job.toml", cwd=home)
    run(oppa, "doctor", cwd=home)
    (home / "job.toml").write_text(JOB)
    assert "predicted to fit" in run(oppa, "predict", "job.toml", cwd=home)
    assert '"completed"' in run(oppa, "tune", "job.toml", "--trials", "1", "--study", "study", "--json", cwd=home)
    run(oppa, "report", "study", cwd=home)
    assert "Content-Security-Policy" in (home / "study" / "report.html").read_text()
    jobs = Path(where.strip()) / "runners" / "simulated" / "jobs"
    assert '"completed"' in run(oppa, "tune", str(jobs / "bert.toml"), "--designer", "random", "--trials", "2", "--json", cwd=home)


def check_typed(wheel: Path, *markers: str) -> None:
    """The wheel states that its annotations are to be used, and its metadata name its licence and its Pythons."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert set(markers) <= set(names), set(markers) - set(names)
    assert "License-Expression: Apache-2.0" in metadata and "Programming Language :: Python :: 3.14" in metadata


def check_sdist(sdist: Path) -> None:
    """The source distribution holds what a packager needs, and no environment."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(EXPECTED_IN_SDIST) <= names, set(EXPECTED_IN_SDIST) - names
    assert not any(name.startswith((".venv", "studies")) for name in names)


def install(environment: Path, *words: object, cwd: Path) -> None:
    """Install a wheel into an environment by this environment's pip; a pip in each takes seconds to create."""
    run(sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-index", *words, cwd=cwd)


def run(*argv: object, cwd: Path, **variables: str) -> str:
    """Standard output of a command that must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([str(arg) for arg in argv], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
