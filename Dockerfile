# An image with oppa and its built-in trainer: `docker build --tag oppa .`, then `docker run --rm --volume "$PWD:/work" oppa tune job.toml`.
FROM python:3.13-slim

COPY . /oppa
WORKDIR /oppa
RUN pip install --constraint constraints.txt ".[train,plots,command]"

WORKDIR /work
ENTRYPOINT ["oppa"]
