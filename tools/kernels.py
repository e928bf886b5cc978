#!/usr/bin/env python3
"""What a card refuses when a kernel is launched, found in what the assembler made.

  tools/kernels.py [--some] LIBRARY FATBIN...   LIBRARY: the kernels compiled for the host (libfake-cuda.so), or "-"
                                                --some: not all kernels were compiled

Holds each kernel of each image, beside which lies the log of its build (nvcc -Xptxas -v):
  one argument, as large as the struct that the host passes;
  static and dynamic (tests/cuda/shared.txt) shared memory within what a block may have on that architecture;
  registers of all threads of a block within a multiprocessor's.
"""
import ctypes
import re
import struct
import sys

SHARED = "tests/cuda/shared.txt"
KIB = 1024
# By architecture: what a block may ask for. CUDA C++ Programming Guide, technical specifications.
MOST_SHARED = {80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}
MOST_STATIC = 48 * KIB
MOST_REGISTERS = 64 * KIB
# Attributes of a kernel in its image: their kinds, and which ones.
SIZED, HALF = 4, 3
PARAMETER, PARAMETER_BYTES, MOST_THREADS = 0x17, 0x19, 0x05


def sections(elf):
    """(name, offset, size) of each"""
    at, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, at + i * size) for i in range(count)]
    base = heads[names][4]
    for h in heads:
        end = elf.index(b"\0", base + h[0])
        yield elf[base + h[0]:end].decode(), h[4], h[5]


def attributes(elf, at, end):
    while at < end:
        kind, which, value = struct.unpack_from("<BBH", elf, at)
        at += 4
        if kind == SIZED:
            yield which, elf[at:at + value]
            at += value
        else:
            yield which, value


def kernels(path):
    """(architecture, name) -> (parameters, their bytes, most threads of a block)"""
    with open(path, "rb") as f:
        data = f.read()
    found, at = {}, data.find(b"\x7fELF")
    while at >= 0:
        elf = data[at:]
        arch = struct.unpack_from("<I", elf, 0x30)[0] >> 8 & 0xFF
        for name, begin, size in sections(elf):
            if not name.startswith(".nv.info."):
                continue
            parameters, total, threads = 0, 0, 0
            for which, value in attributes(elf, begin, begin + size):
                parameters += which == PARAMETER
                total = value if which == PARAMETER_BYTES else total
                if which == MOST_THREADS:
                    x, y, z = struct.unpack("<III", value)
                    threads = x * y * z
            found[arch, name[len(".nv.info."):]] = parameters, total, threads
        at = data.find(b"\x7fELF", at + 4)
    return found


def used(path):
    """(architecture, name) -> (registers, static shared memory), by the log"""
    rows, at = {}, None
    with open(path) as f:
        for line in f:
            if m := re.search(r"Compiling entry function '(\w+)' for 'sm_(\d+)", line):
                at = int(m[2]), m[1]
            elif at and (m := re.search(r"Used (\d+) registers", line)):
                shared = re.search(r"(\d+) bytes smem", line)
                rows[at] = int(m[1]), int(shared[1]) if shared else 0
    return rows


def struct_bytes(library, name):
    size = ctypes.c_size_t()
    return size.value if library.shim_find(name.encode(), ctypes.byref(size)) >= 0 else None


def wrong(key, kernel, use, dynamic, host):
    (arch, _), (parameters, total, threads), (registers, static) = key, kernel, use
    if parameters != 1:
        yield f"takes {parameters} arguments, and launches pass one"
    if host is not None and total != host:
        yield f"takes {total} bytes, and launches pass {host}"
    if not 0 < threads <= 1024:
        yield f"has no bound of threads that a card takes ({threads})"
    if static > MOST_STATIC:
        yield f"has {static} bytes of static shared memory: more than {MOST_STATIC}"
    if static + dynamic > MOST_SHARED[arch]:
        yield f"takes {static} + {dynamic} bytes of shared memory: a block may have {MOST_SHARED[arch]}"
    warp = (registers * 32 + 255) // 256 * 256  # they are given out so
    if (threads + 31) // 32 * warp > MOST_REGISTERS:
        yield f"has {registers} registers in {threads} threads: more than {MOST_REGISTERS}"


def main():
    some = sys.argv[1:2] == ["--some"]
    if some:
        del sys.argv[1]
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    library = None if sys.argv[1] == "-" else ctypes.CDLL(sys.argv[1])
    with open(SHARED) as f:
        dynamic = {n: int(b) for n, b in (line.split() for line in f if not line.startswith("#"))}
    bad, count, seen, archs = [], 0, set(), set()
    for path in sys.argv[2:]:
        use = used(path + ".log")
        for key, kernel in sorted(kernels(path).items()):
            name = key[1]
            if key not in use:
                bad.append(f"{name} on sm_{key[0]}: the log does not have it")
                continue
            host = struct_bytes(library, name) if library else None
            if library and host is None:
                bad.append(f"{name}: no such kernel on the host")
            bad += [f"{name} on sm_{key[0]}: {why}"
                    for why in wrong(key, kernel, use[key], dynamic.get(name, 0), host)]
            count += 1
            seen.add(name)
            archs.add(key[0])
    # wgmma is of sm_90a alone
    bad += [f"{name} of {SHARED} is in no image" for name in dynamic
            if name not in seen and not some and ("wgmma" not in name or 90 in archs)]
    if not count:
        sys.exit("no kernel in these images")
    for line in bad:
        print(f"  {line}")
    if bad:
        sys.exit(f"{len(bad)} kernels that a card would refuse")
    print(f"  ok    {count} kernels: arguments, shared memory and registers are what a card takes")


if __name__ == "__main__":
    main()
