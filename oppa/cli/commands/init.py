"""`oppa init`: write a job file for this machine, or for the hosts of an allocation."""

from pathlib import Path
from typing import Annotated

import typer

MODEL = "Preset of the model, such as `tiny-1m` or `llama-2-7b`; by default the largest of a few presets that fit."


def init(
    path: Annotated[Path, typer.Argument(metavar="JOB", help="The file to write.")] = Path("job.toml"),
    model: Annotated[str, typer.Option(metavar="PRESET", help=MODEL)] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
) -> None:
    """Write a job.toml for `oppa tune` on this machine, or on all hosts of the allocation in which oppa runs.

    Exit codes: 0 written, 2 wrong input, 3 environment lacking.
    """
    import tomllib

    from oppa.cli.views import style
    from oppa.cli.views.summary import warn_of_unknown_device
    from oppa.errors import InputError
    from oppa.problem.cluster import Cluster
    from oppa.report.text_file import write_text
    from oppa.units import parse_bytes

    if path.exists() and not force:
        raise InputError(f"`{path}` exists", hint="name another file, or overwrite it with --force")
    text = _suggested(model)
    write_text(path, text)
    cluster = tomllib.loads(text)["cluster"]
    limit_bytes = parse_bytes(cluster["memory_limit"])
    warn_of_unknown_device(Cluster(device=cluster["device"], devices_per_host=1, memory_limit_bytes=limit_bytes))
    style.err().print(f"written: {path}\n\nedit it, then run\n  oppa space {path}\n  oppa tune {path}", markup=False)


def _suggested(preset: str) -> str:
    import dataclasses

    from oppa.cli.views import style
    from oppa.launchers import slurm
    from oppa.problem.allocation import read_allocation, read_netlab
    from oppa.problem.detect import suggest_job, this_machine

    if read_netlab():
        given, machine = read_allocation(on_cuda=False), this_machine()
        share = dataclasses.replace(machine, cores=machine.cores / given.hosts, memory_bytes=machine.memory_bytes // given.hosts, gpus=0)
        return suggest_job(share, hosts=given.hosts, devices=given.devices_per_host, link=given.link, preset=preset)
    if job := slurm.own_job():
        from oppa.launchers.probe import probe

        with style.err().status(f"probing the hosts of Slurm's job {job}"):
            found = probe(job)
        return suggest_job(found.machine, hosts=found.hosts, link=found.link, preset=preset)
    return suggest_job(preset=preset)
