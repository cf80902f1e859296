"""Compiles crc32c.cu to crc32c.ptx, by CUDA's run-time compiler: `compile.py PATH_OF_LIBNVRTC`. Needs no GPU.

The oldest compiler that is at hand is the best one: drivers take what is older than they are. 11.8, from the Python
package nvidia-cuda-nvrtc-cu11, made what is checked in.
"""

import ctypes
import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
# The oldest GPUs that GPUDirect Storage knows; newer ones take it too.
OPTIONS = [b"--gpu-architecture=compute_70", b"--std=c++14"]


def main(library):
    nvrtc = ctypes.CDLL(library)
    source = (HERE / "crc32c.cu").read_bytes()

    def call(name, *arguments):
        code = getattr(nvrtc, name)(*arguments)
        if code != 0:
            sys.exit(f"{name} answered {code}: {text('ProgramLog') if program else ''}")

    def text(what):
        size = ctypes.c_size_t()
        call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        said = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{what}", program, said)
        return said.value.decode()

    program = ctypes.c_void_p()
    call("nvrtcCreateProgram", ctypes.byref(program), source, b"crc32c.cu", 0, None, None)
    call("nvrtcCompileProgram", program, len(OPTIONS), (ctypes.c_char_p * len(OPTIONS))(*OPTIONS))
    made_from = f"// crc32c.cu, SHA-256 {hashlib.sha256(source).hexdigest()}\n"
    (HERE / "crc32c.ptx").write_text(made_from + text("PTX"))


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
