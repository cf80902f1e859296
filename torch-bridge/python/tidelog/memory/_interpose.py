"""Where torch's CPU allocator gets its memory: two functions of the C library, which `libc10.so` calls
through pointers that the dynamic linker has put there. They are made to point at the library's own.

torch has no interface for that from Python. Where anything is not as expected (another object format,
an allocator built into torch, a profiler that has put functions of its own there) nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import sys
from collections.abc import Iterator, Mapping

_LIBRARY = "libc10.so"
_PROGRAM_HEADER_DYNAMIC = 2
_STRTAB, _SYMTAB, _RELA, _RELASZ, _PLTRELSZ, _JMPREL = 5, 6, 7, 8, 2, 23
# Relocations whose place holds the address of the symbol alone, by machine (`<elf.h>`).
_POINTERS = {"x86_64": {1, 6, 7}, "aarch64": {257, 1025, 1026}}
_PAGE_BYTES = 4096
_PROT_READ, _PROT_WRITE = 1, 2
# They put functions of their own there, and take them away as if nobody had done so meanwhile.
_OTHERS = ("memray", "filprofiler")


def direct(functions: Mapping[str, int]) -> bool:
    """Has torch's allocator call these (name in the C library -> address) instead, in their order, for
    the rest of the process. Returns whether it does."""
    if any(name in sys.modules for name in _OTHERS):
        return False
    try:
        places = {name: list(_places(name)) for name in functions}
        usual = {name: _address_of(name) for name in functions}
    except (OSError, ValueError, AttributeError, struct.error):
        return False
    found = [(place, name) for name in functions for place in places[name]]
    if not all(places.values()) or any(_read(place) not in (usual[name], functions[name]) for place, name in found):
        return False
    return all(_write(place, functions[name]) for place, name in found)


def _address_of(name: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def _read(place: int) -> int:
    return ctypes.c_uint64.from_address(place).value


def _write(place: int, address: int) -> bool:
    mprotect = ctypes.CDLL(None).mprotect
    page = ctypes.c_void_p(place & -_PAGE_BYTES)
    was_writable = any(place in area and "w" in access for area, access, _ in _mappings())
    if not was_writable and mprotect(page, _PAGE_BYTES, _PROT_READ | _PROT_WRITE) != 0:
        return False
    ctypes.c_uint64.from_address(place).value = address
    if not was_writable:
        mprotect(page, _PAGE_BYTES, _PROT_READ)
    return True


def _places(name: str) -> Iterator[int]:
    """Where the library has the address of a function of another one."""
    base = min(area.start for area, _, path in _mappings() if os.path.basename(path) == _LIBRARY)
    dynamic = _dynamic(base)
    symbols, names = dynamic[_SYMTAB], dynamic[_STRTAB]
    kinds = _POINTERS[platform.machine()] if platform.machine() in _POINTERS else set()
    for table, size in ((_RELA, _RELASZ), (_JMPREL, _PLTRELSZ)):
        entries = ctypes.string_at(dynamic[table], dynamic[size] // 24 * 24)
        for offset, kind, _ in struct.iter_unpack("<QQq", entries):
            if kind & 0xFFFFFFFF in kinds and kind >> 32:
                text = names + ctypes.c_uint32.from_address(symbols + 24 * (kind >> 32)).value
                if ctypes.string_at(text) == name.encode():
                    yield base + offset


def _dynamic(base: int) -> dict[int, int]:
    """The dynamic section of a loaded library: tag -> value, addresses as they are in memory."""
    header = ctypes.string_at(base, 64)
    if header[:6] != b"\x7fELF\2\1":
        raise ValueError(header[:6])
    table, size, count = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
    found: dict[int, int] = {}
    for number in range(count):
        kind, _, _, address = struct.unpack_from("<IIQQ", ctypes.string_at(base + table + number * size, size))
        if kind == _PROGRAM_HEADER_DYNAMIC:
            place = base + address
            while (tag := ctypes.c_uint64.from_address(place).value) != 0:
                found[tag] = ctypes.c_uint64.from_address(place + 8).value
                place += 16
    for tag in (_STRTAB, _SYMTAB, _RELA, _JMPREL):  # not every dynamic linker has added the base
        found[tag] += base if found[tag] < base else 0
    return found


def _mappings() -> Iterator[tuple[range, str, str]]:
    """What is mapped: addresses, access, path."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if (parts := re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ \S+ *(.*)", line)) is not None:
                yield range(int(parts[1], 16), int(parts[2], 16)), parts[3], parts[4]
