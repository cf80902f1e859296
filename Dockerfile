# syntax=docker/dockerfile:1
# A training environment with Tidelog, as an example to take from: docs/how-to/container.md.
#     docker build --tag tidelog .
#     docker run --gpus all --user "$(id -u)" --shm-size 1g --volume /mnt/nvme0:/pool --volume "$PWD":/work tidelog \
#         --memory auto --pool /pool/tide train.py
ARG PYTHON=3.12
ARG TORCH=2.15.0

FROM python:${PYTHON}-slim-bookworm AS torch
ARG TORCH
RUN python -m venv /opt/training && /opt/training/bin/pip install --no-cache-dir "torch==${TORCH}"

FROM torch AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes ca-certificates curl g++ \
    && rm -rf /var/lib/apt/lists/*
RUN curl --proto '=https' --tlsv1.2 --silent --show-error --fail https://sh.rustup.rs \
    | sh -s -- -y --profile minimal --default-toolchain 1.89.0
WORKDIR /source
COPY . .
# The bridge's part in C++ is made for the torch above, so that the image needs no compiler.
ENV PATH=/root/.cargo/bin:$PATH TIDELOG_TORCH=/opt/training
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM torch
COPY --from=build /wheels /wheels
RUN /opt/training/bin/pip install --no-cache-dir --no-deps /wheels/*.whl && useradd --create-home --uid 1000 trainer
USER 1000
WORKDIR /work
ENV PATH=/opt/training/bin:$PATH
ENTRYPOINT ["tidelog", "run"]
CMD ["--help"]
