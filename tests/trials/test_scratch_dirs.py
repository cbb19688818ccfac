"""Each host removes the scratch folders of its own dead tuners, in a folder that hosts may share."""

from oppa.trials import processes, scratch_dirs

STUDY = "0123456789abcdef"


def test_a_dead_tuner_s_folder_is_found_and_those_of_living_ones_and_of_other_hosts_are_left(tmp_path) -> None:
    living = scratch_dirs.name(STUDY)
    tuner = processes.this_process()
    dead = living.replace(f"-{tuner.pid}-{tuner.started}-", f"-{tuner.pid}-{tuner.started + 1}-")
    host = living.split("-")[2]
    elsewhere = dead.replace(f"-{host}-", f"-{int(host, 16) ^ 1:08x}-")
    for name in (living, dead, elsewhere, "oppa-01234567-notes"):
        (tmp_path / name).mkdir()
    assert len({living, dead, elsewhere}) == 3
    assert scratch_dirs.abandoned(tmp_path, STUDY) == [tmp_path / dead]
    assert scratch_dirs.abandoned(tmp_path, "fedcba9876543210") == []
