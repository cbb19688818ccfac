"""A degree in a script of Megatron-LM is a parameter of the imported job, or the import is refused."""

import pytest

from oppa.errors import InputError
from oppa.problem.baseline import at_rest, complete
from oppa.tuning.formats import FORMATS
from tests.tuning.formats.adopted_jobs import JOB, LLAMA, OWN, adopted
from tests.tuning.formats.launch_lines import line

SCRIPT = {"train.sh": f"{LLAMA.strip()} --context-parallel-size 2"}
LLAMA_JOB = JOB.replace("tiny-4m", "llama-2-7b").replace("[model]", "[model]\nvocab = 32001")
WITHOUT = {
    "a runner of its own": f'{LLAMA_JOB}[runner]\nname = "simulated"\n[space]\nname = "megatron"\n',
    "a launch line of its own": f'{LLAMA_JOB}{OWN}[space]\nname = "megatron"\n',
    "parameters of its own": f"{LLAMA_JOB}[space.parameters]\nrecompute = 'none'\n",
}


@pytest.mark.parametrize(
    "job", ["", LLAMA_JOB, f'{LLAMA_JOB}[runner]\nname = "torch"\n'], ids=["no job", "a job", "a job of another runner"]
)
def test_context_parallelism_is_a_parameter_and_divides_the_replicas(job, tmp_path) -> None:
    _, problem = adopted(tmp_path, "megatron", SCRIPT, job, take="file" if job else None)
    reading = FORMATS["megatron"].parse(problem, SCRIPT)
    configuration = at_rest(problem.space, complete(problem.space, reading.settings))
    assert (configuration.dp, configuration.tp, configuration["cp"]) == (2, 2, 2) and not reading.ignored
    words = line(problem, configuration)
    assert words.count("--context-parallel-size") == 1 and words[words.index("--context-parallel-size") + 1] == "2"


@pytest.mark.parametrize("job", WITHOUT.values(), ids=WITHOUT)
def test_context_parallelism_that_the_job_lacks_is_refused(job, tmp_path) -> None:
    with pytest.raises(InputError, match="the file has cp = 2, which is no parameter of the job") as caught:
        adopted(tmp_path, "megatron", SCRIPT, job, take="job")
    assert caught.value.hint == "add `cp = 2` below `[space.parameters]`"
