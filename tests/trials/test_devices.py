"""A trial waits for the memory of its own devices alone."""

import pytest

from oppa.trials.devices import used_bytes

UUID = "GPU-5d4c3b2a-1f0e-9d8c-7b6a-594837261504"
PRINTS = """#!/bin/sh
case "$*" in *--id=*) ids=${*##*--id=}; echo "${ids%% *}" | tr , "\\n" | sed "s/.*/1/" ;; *) printf "5\\n5\\n" ;; esac
"""
"""A device that is asked for uses 1 MiB, and all of them together 10 MiB."""


@pytest.mark.parametrize(
    ("visible", "used_mib"),
    [(None, 10), ("0,3", 2), ("3, 0", 2), (f"{UUID},{UUID}", 2), ("", 10), ("GPU-5d4c", 10), (f"MIG-{UUID}", 10), ("0,-1", 10)],
)
def test_the_memory_in_use_is_that_of_the_visible_devices(visible, used_mib, tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(PRINTS)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert used_bytes() == used_mib << 20
