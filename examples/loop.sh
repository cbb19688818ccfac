#!/bin/sh
# One job from its first trial to its reports: the fastest configuration, the table over batch sizes, a training run whose batch and layout
# follow its gradient noise scale, and a page each. If it is interrupted, the same command continues.
#
#   sh examples/loop.sh [FOLDER]
set -eu
job=$(cd "$(dirname "$0")" && pwd)/loop.toml
folder=${1:-runs/loop}
mkdir -p "$folder"
cd "$folder"
[ -d study/best ] || oppa tune "$job" --study study
oppa profile "$job" --global-batch 8..64 --table table
oppa train "$job" global_batch=8 --table table --policy goodput --run run
oppa report study
oppa report run
