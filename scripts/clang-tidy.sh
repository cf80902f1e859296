#!/usr/bin/env bash
# Looks for bugs in the bridge's C++, as .clang-tidy says; with the headers of .venv's torch.
set -euo pipefail
cd "$(dirname "$0")/.."
torch=$(.venv/bin/python -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')
python=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
"${CLANG_TIDY:-.venv/bin/clang-tidy}" --quiet torch-bridge/python/tidelog/native/module.cpp -- \
    -std=c++20 -I torch-bridge/include \
    -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" -isystem "$python"
