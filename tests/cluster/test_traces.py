"""A trace loads as it is published, or its faulty line is named."""

import json
import time
from pathlib import Path

import pytest

from oppa.catalog import data_folder
from oppa.cluster.generator import PRETRAIN, SEREN, generate, like
from oppa.cluster.job import TraceJob
from oppa.cluster.traces import read_trace, write_trace
from oppa.errors import InputError

ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778433,u1,0,0,16,Other,COMPLETED,2023-03-01 00:18:30+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,24,0.0
5778469,u5907,16,128,128,Pretrain,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,344704.0
"""
PHILLY = [
    {
        "jobid": "application_1",
        "status": "Pass",
        "vc": "ee9e8c",
        "user": "ce2c3b",
        "submitted_time": "2017-10-09 07:02:05",
        "attempts": [
            {
                "start_time": "2017-10-09 07:02:15",
                "end_time": "2017-10-09 07:03:15",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
            },
            {"start_time": "2017-10-09 08:00:00", "end_time": "2017-10-09 08:00:30", "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]},
        ],
    },
    {"jobid": "application_2", "status": "Killed", "submitted_time": "2017-10-09 07:00:05", "attempts": []},
]


def test_acme_s_jobs_with_gpus(tmp_path: Path) -> None:
    (tmp_path / "trace_seren.csv").write_text(ACME)
    first, second = read_trace(tmp_path / "trace_seren.csv")
    assert first == TraceJob(name="5778432", arrival_s=0.0, duration_s=117.0, gpus=8, kind="Other", priority=1)
    assert second == TraceJob(name="5778469", arrival_s=5 * 60 + 36, duration_s=2693.0, gpus=128, kind="Pretrain", priority=2)


def test_philly_s_attempts_are_one_job(tmp_path: Path) -> None:
    never = {"start_time": "", "end_time": "None", "detail": []}
    philly = [{**PHILLY[0], "attempts": [*PHILLY[0]["attempts"], never]}, PHILLY[1]]
    (tmp_path / "cluster_job_log").write_text(json.dumps(philly))
    assert read_trace(tmp_path / "cluster_job_log") == [
        TraceJob(name="application_1", arrival_s=0.0, duration_s=90.0, gpus=3, kind="", priority=1)
    ]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    jobs = generate(SEREN, days=0.05, seed=3)
    (tmp_path / "trace.csv").write_text(write_trace(jobs))
    found = read_trace(tmp_path / "trace.csv")
    assert len(found) == len(jobs) > 100
    for one, other in zip(sorted(found, key=lambda job: job.name), sorted(jobs, key=lambda job: job.name), strict=True):
        assert (one.name, one.gpus, one.kind, one.priority) == (other.name, other.gpus, other.kind, other.priority)
        assert one.duration_s == pytest.approx(other.duration_s, abs=1e-3)
        assert one.arrival_s == pytest.approx(other.arrival_s - jobs[0].arrival_s, abs=2e-3)


KALOS = "acme_kalos_llm_jobs.csv"


@pytest.mark.skipif(not (data_folder() / KALOS).is_file(), reason=f"NOT TESTED against a published trace: {data_folder()} lacks {KALOS}")
def test_kalos_as_it_is_published() -> None:
    jobs = read_trace(data_folder() / KALOS)
    assert len(jobs) == 319 and max(job.gpus for job in jobs) <= 2_416 and jobs[0].arrival_s == 0
    assert {job.kind for job in jobs} == {"Pretrain", "Other_or_SFT"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("job_id,duration_s\na,1\n", "lacks `submit_s`, `gpu_num`"),
        ("", "lacks"),
        ("job_id,submit_s,duration_s,gpu_num\na,0,-1,8\n", "line 2: the duration is -1 s"),
        ("job_id,submit_s,duration_s,gpu_num\na,0,1,8\nb,0,soon,8\n", "line 3: `duration_s = soon`"),
        ("job_id,submit_s,duration_s,gpu_num\na,0,1,-8\n", "-8 GPUs"),
        ("job_id,submit_s,duration_s,gpu_num\na,nan,1,8\n", "nan s"),
        ("job_id,submit_s,duration_s,gpu_num\na,0,1,0\n", "no jobs that request GPUs"),
        ("job_id,submit_s,duration_s,gpu_num\na,0\n", "line 2: `duration_s = ` is not a number"),
        ("job_id,submit_s,duration_s,gpu_num\na,0,1,1.5\n", "line 2: `gpu_num = 1.5` is not a whole number"),
        ("job_id,submit_s,duration_s,gpu_num\n,0,1,8\n", "line 2: the job has no name"),
        ("job_id,submit_s,duration_s,gpu_num\na,0,1,8\n" + "b" * 200_000 + ",0,1,8\n", "line 3: field larger"),
        (ACME.splitlines()[0] + "\na,u,1,inf,0,Other,DONE,2023-03-01 00:18:22+08:00,,,1,0,0\n", "line 2: cannot convert float infinity"),
    ],
)
def test_what_makes_no_sense_is_named_by_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(InputError, match=said) as refusal:
        read_trace(tmp_path / "trace.csv")
    assert refusal.value.hint


def test_a_mark_of_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("job_id,submit_s,duration_s,gpu_num\na,5,1,8\n", encoding="utf-8-sig")
    assert [job.name for job in read_trace(tmp_path / "trace.csv")] == ["a"]


@pytest.mark.parametrize("name", [None, "", 7])
def test_a_job_of_philly_s_without_a_name_is_reported(name: object, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps([{**PHILLY[0], "jobid": name}]))
    with pytest.raises(InputError, match="job 0: the job has no name"):
        read_trace(tmp_path / "log.json")


@pytest.mark.parametrize("text", ["[1]", "{", '[{"jobid": "a"}]', '{"a": 1}', "[" * 100_000], ids=range(5))
def test_other_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(text)
    with pytest.raises(InputError, match="not Philly's JSON"):
        read_trace(tmp_path / "log.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "nothing.csv")


@pytest.mark.slow
def test_a_trace_like_seren_has_its_jobs_and_its_gpu_time() -> None:
    jobs = generate(SEREN, seed=1)
    assert len(jobs) == 330_000
    total = sum(job.gpus * job.duration_s for job in jobs)
    assert total / (SEREN.gpus * 90 * 86_400) == pytest.approx(0.59, abs=0.01)
    shares = {kind.name: sum(job.gpus * job.duration_s for job in jobs if job.kind == kind.name) / total for kind in SEREN.kinds}
    assert shares[PRETRAIN] == pytest.approx(0.695, abs=0.01)
    pretraining = sorted(job.duration_s for job in jobs if job.kind == PRETRAIN)
    assert len(pretraining) == 2_937 and pretraining[len(pretraining) // 2] == pytest.approx(297, rel=0.02)
    assert max(job.gpus for job in jobs) == 1_024 and sum(job.gpus == 1 for job in jobs) / len(jobs) == pytest.approx(0.54, abs=0.02)


def test_a_seed_is_a_trace() -> None:
    one, same, other = (generate(SEREN, days=2, seed=seed) for seed in (0, 0, 1))
    assert one == same != other


def test_unknown_traces_and_no_days_are_refused() -> None:
    with pytest.raises(InputError, match="is unknown") as refusal:
        like("serene")
    assert "seren" in (refusal.value.hint or "")
    with pytest.raises(InputError, match="has no jobs"):
        generate(SEREN, days=0)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
def test_philly_s_durations_do_not_depend_on_the_zone_of_this_machine(zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    spans = [("2017-10-28 23:30:00", "2017-10-29 06:30:00"), ("2017-11-05 01:50:00", "2017-11-05 01:10:00")]
    detail = PHILLY[0]["attempts"][0]["detail"]  # type: ignore[index]
    attempts = [{"start_time": begin, "end_time": end, "detail": detail} for begin, end in spans]
    (tmp_path / "cluster_job_log").write_text(json.dumps([{**PHILLY[0], "attempts": attempts}]))
    (job,) = read_trace(tmp_path / "cluster_job_log")
    monkeypatch.undo()
    time.tzset()
    assert job.duration_s == 7 * 3600.0


@pytest.mark.parametrize("duration", ["", "nan"])
def test_acme_s_jobs_that_never_ran_are_left_out(duration: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(ACME.replace(",117,32,", f",{duration},32,"))
    assert [job.gpus for job in read_trace(tmp_path / "trace.csv")] == [128]
