#!/usr/bin/env bash
# An environment with libraries that not every run of the tests pays for, beside that of the tests, whose torch they
# use. Does nothing where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=target/integrations
python=$folder/bin/python

cmp -s requirements-integrations.txt "$folder/installed" && exit
.venv/bin/python -m venv --clear "$folder"
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$packages/tests.pth"
"$python" -m pip install --quiet --constraint <(grep '^torch==' requirements.txt) -r requirements-integrations.txt
# As pip would have it, torchtitan takes older packages of Hugging Face than the rest.
"$python" -m pip install --quiet --no-deps torchtitan==0.3.0 spmd_types torch_checkpointing torchdata tyro \
    einops docstring_parser typeguard
cp requirements-integrations.txt "$folder/installed"
