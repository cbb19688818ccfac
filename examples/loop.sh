#!/bin/sh
# The whole way of one job: a job file for this machine, the fastest configuration, the table over batch sizes, a training run whose batch
# and layout follow its gradient noise scale, and a page for each. Interrupted, the same command goes on.
#
#   sh examples/loop.sh [FOLDER]
set -eu
folder=${1:-runs/loop}
mkdir -p "$folder"
cd "$folder"
[ -f job.toml ] || oppa init job.toml --model tiny-1m
[ -d study/best ] || oppa tune job.toml --study study --trials 12
oppa profile job.toml --global-batch 8..32 --table table --time "3 min"
oppa train job.toml --table table --policy goodput --run run --samples 1280
oppa report study
oppa report run
