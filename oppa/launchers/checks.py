"""Check for `oppa doctor` whether trials can run on Slurm, and on emulated hosts."""

import shutil
from collections.abc import Iterator

from oppa.errors import EnvironmentLackingError
from oppa.launchers import slurm
from oppa.launchers.emulation.netlab import netlab_lacking
from oppa.trials.host import Check


def checks() -> Iterator[Check]:
    """Yield a check of Slurm and one of emulated hosts."""
    yield _slurm()
    lacking = "; ".join(netlab_lacking())
    hint = "`oppa emulate` cannot emulate several hosts here, or not accurately"
    yield Check(
        name="emulated hosts", works=not lacking, found=lacking or "this machine can emulate several, joined by a slow link", hint=hint
    )


def _slurm() -> Check:
    hint = "trials run on this host; `--set launcher.name=slurm` needs srun, sbatch and scontrol"
    if shutil.which("srun") is None:
        return Check(name="Slurm", works=False, found="not installed", hint=hint)
    try:
        answer = slurm.ask("scontrol", "ping").strip()
        job = slurm.own_job()
        found = f"in job {job}: {len(slurm.nodes(job))} hosts" if job else answer
    except EnvironmentLackingError as error:
        return Check(name="Slurm", works=False, found=error.message, hint=hint)
    return Check(name="Slurm", works=True, found=found)
