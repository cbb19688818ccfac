"""Write into the default folders of axolotl 0.13."""

import sys

from settings_program import run

FOLDERS = {"output_dir": "./model-out", "dataset_prepared_path": "last_run_prepared"}
run(sys.argv[1:], FOLDERS, "{{'loss': 1.0, 'epoch': {step}}}")
