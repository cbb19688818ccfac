"""Write the configuration files that a launch line names as a configuration has them, without what only trials need."""

import json
from collections.abc import Mapping
from pathlib import Path

from oppa.problem.configuration import Configuration, Value
from oppa.problem.file_keys import put, require_tables
from oppa.problem.settings_text import read_settings
from oppa.study.database import disk_errors
from oppa.tuning.launch_line.line_job import LineJob

_HINT = "restore the file as it was when the search began"


def write_files(job: LineJob, configuration: Configuration, folder: Path) -> list[Path]:
    """Write a copy of each file whose keys differ in a configuration; return the paths.

    Raises:
        InputError: a file can no longer be read, or a key leads through a value that is not a table.
        StudyError: a copy cannot be written.
    """
    copies = job.copies(folder)
    written = []
    for file, keys in job.files_of(configuration, folder):
        if keys:
            path = copies[file.name]
            with disk_errors(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(rewritten(file.path, keys))
            written.append(path)
    return written


def rewritten(source: Path, keys: Mapping[str, Value]) -> str:
    """Return a file's text with dotted keys set; tables that are missing are added."""
    content = read_settings(source, hint=_HINT)
    require_tables(content, keys, source=str(source))
    for key, value in keys.items():
        put(content, key, value)
    if source.suffix in (".yaml", ".yml"):
        import yaml

        return str(yaml.safe_dump(content, sort_keys=False))
    return json.dumps(content, indent=2) + "\n"
