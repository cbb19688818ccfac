"""`oppa report` writes a page into the study's folder, or to the path that is given."""

import pytest

pytestmark = pytest.mark.slow


def test_it_writes_the_page_into_the_study_and_prints_where(oppa, measured) -> None:
    assert oppa("report", measured).stdout == "s/report.html\n"
    assert (oppa.folder / "s" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_it_writes_to_the_given_path_and_replaces_what_is_there(oppa, measured) -> None:
    (oppa.folder / "page.html").write_text("old")
    assert oppa("report", measured, "--out", "page.html").stdout == "page.html\n"
    assert "dp2_tp1_pp1_z0_mbs4" in (oppa.folder / "page.html").read_text()
    assert not (oppa.folder / "s" / "report.html").exists()


def test_what_is_no_study_is_an_error(oppa) -> None:
    assert "`nowhere` holds no study, run or table" in oppa("report", "nowhere", code=2).stderr


def test_a_folder_that_is_missing_is_an_error(oppa, measured) -> None:
    assert "cannot be written" in oppa("report", measured, "--out", "missing/page.html", code=2).stderr


@pytest.mark.parametrize(("name", "why"), [("missing/page", "No such file"), ("job.toml/page", "Not a directory"), ("s", "not a file")])
def test_the_path_is_checked_before_the_study_is_read(oppa, name, why) -> None:
    (oppa.folder / "s").mkdir()
    (oppa.folder / "s" / "study.db").write_text("no database")
    said = oppa("report", "s", "--out", name, code=2).stderr
    assert f"`{name}` cannot be written" in said and why in said
