"""The command lines of the experiments whose runs are recorded: they show the newest record, or train what it lacks."""

from collections.abc import Callable, Mapping

from experiments.lib.recorded_command import recorded_command

MORE = "The same command continues an interrupted run."


def recorded_commands() -> Mapping[str, Callable[..., None]]:
    """Return the command lines of the experiments whose runs are recorded."""
    return {
        "goodput": recorded_command(
            "goodput",
            """Show the time to a target loss under the goodput policy, the critical batch size and static batches, by the newest runs.

            The job is a small GPT on real text, on four emulated hosts in two racks with slow links.
            """,
            run=f"First train the runs that are not recorded, which takes hours and requires Linux as root. {MORE}",
            unit="seeds",
            counts="Number of seeds for each policy.",
            usual=10,
            json_help="Print the figures as JSON on stdout, as fractions.",
        ),
        "trainers-goodput": _trainer(
            "trainers-goodput", "a small Llama on Python's own source text, on two ranks of this machine", on="CPUs", experiment="CPU"
        ),
        "trainers-goodput-gpu": _trainer(
            "trainers-goodput-gpu", "a Llama of 206 million parameters in bf16, on one H100", on="one GPU", experiment="GPU"
        ),
        "norm-test": _norm_test("norm-test", "on four data-parallel ranks", under="DDP", takes="an hour", experiment="DDP"),
        "norm-test-fsdp": _norm_test(
            "norm-test-fsdp",
            "with the settings of the paper's tables 5 to 7",
            under="FSDP in bf16",
            takes="half an hour a seed",
            experiment="FSDP",
        ),
        "policies": recorded_command(
            "policies",
            """Show the seconds until an accuracy is reached under each policy, by the newest runs.

            The job is a small convolutional network on digits, on four data-parallel workers of different speed.
            """,
            run=f"First train the runs that are not recorded, which takes two hours. {MORE}",
            unit="seeds",
            counts="Number of seeds for each policy.",
            usual=3,
            json_help="Also measure the cost of decisions, and print all figures as JSON on stdout.",
        ),
        "pipelines": recorded_command(
            "pipelines",
            "Compare step times and memory of other pipelines with predictions from the first steps of one, by the newest runs.",
            run="First run the pipelines, which takes two minutes a round and requires writable control groups and an idle machine.",
            unit="rounds",
            counts="Number of rounds, each with its profile.",
            usual=4,
        ),
    }


def _trainer(name: str, job: str, *, on: str, experiment: str) -> Callable[..., None]:
    return recorded_command(
        name,
        f"""Show the time to a target loss of Transformers' `Trainer` under each policy on {on}, by the newest runs.

        The job is {job}.
        """,
        run=f"First train the runs that are not recorded, which takes minutes for each seed. {MORE}",
        unit="seeds",
        counts="Number of seeds for each policy.",
        usual=10,
        json_help="Print the figures as JSON on stdout, as fractions.",
        experiment=f"experiments.trainers_goodput.experiment:{experiment}",
    )


def _norm_test(name: str, job: str, *, under: str, takes: str, experiment: str) -> Callable[..., None]:
    return recorded_command(
        name,
        f"""Show losses, steps and seconds of the norm test and of constant batches under {under}, by the newest runs.

        The job is a small Llama on real text, {job}.
        """,
        run=f"First train the runs that are not recorded, which takes {takes}. {MORE}",
        unit="seeds",
        counts="Number of seeds for each scheme.",
        usual=5,
        experiment=f"experiments.norm_test.experiment:{experiment}",
    )
