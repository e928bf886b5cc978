#!/usr/bin/env python3
"""What the assembler says of each CUDA kernel, held against the committed table.

  tools/ptxas.py LOG...          holds the logs of a build (nvcc -Xptxas -v) against the table
  tools/ptxas.py --some LOG...   the same where not all kernels were compiled
  tools/ptxas.py --all           compiles for every architecture of the table's head and does the same
  tools/ptxas.py --all --write   writes the table anew

Registers decide how many blocks share a multiprocessor, spills and stack frames are memory traffic that nobody wrote.
A kernel may not have more of either than the table says: who changes that on purpose writes the table anew and says
why. Registers are held only with the compiler that wrote the table, since versions differ in them.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

TABLE = "tests/cuda/ptxas.txt"
ARCHS = ["80", "86", "89", "90a", "100", "120"]
ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SERIAL = re.compile(r"\(C75\d\d\)[^\n]*|Potential Performance Loss[^\n]*")  # products of a warpgroup that wait for one another
FIELDS = ["registers", "stack", "spill stores", "spill loads"]


def parse(text):
    """{(arch, kernel): [registers, stack, stores, loads]}"""
    rows, at = {}, None
    for line in text.splitlines():
        if m := ENTRY.search(line):
            at = (m[2], m[1])
            rows[at] = [0, 0, 0, 0]
        elif at and (m := FRAME.search(line)):
            rows[at][1:] = [int(n) for n in m.groups()]
        elif at and (m := USED.search(line)):
            rows[at][0] = int(m[1])
    return rows


def nvcc():
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return os.environ.get("NVCC") or os.path.join(home, "bin", "nvcc")


def version():
    out = subprocess.run([nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V([\d.]+)", out)[1]


def compile_all():
    text = ""
    with tempfile.TemporaryDirectory() as tmp:
        for source in sorted(glob.glob("kernels/cuda/*.cu")):
            for arch in ARCHS:
                print(f"  PTXAS   {source} sm_{arch}", file=sys.stderr)
                run = subprocess.run([nvcc(), "-std=c++17", "-O3", "-I.", "-Xptxas", "-v", "-cubin", f"-arch=sm_{arch}",
                                      "-o", os.path.join(tmp, "x.cubin"), source], capture_output=True, text=True)
                if run.returncode:
                    sys.exit(run.stderr)
                text += run.stdout + run.stderr
    return text


def read_table():
    rows, compiler = {}, ""
    with open(TABLE) as f:
        for line in f:
            if line.startswith("# nvcc "):
                compiler = line.split()[2]
            elif line.strip() and not line.startswith("#"):
                arch, kernel, *numbers = line.split()
                rows[arch, kernel] = [int(n) for n in numbers]
    return rows, compiler


def write_table(rows):
    with open(TABLE, "w") as f:
        f.write("# What the assembler says of each kernel; written by tools/ptxas.py --all --write.\n")
        f.write(f"# nvcc {version()}\n# arch kernel registers stack spill_stores spill_loads\n")
        for (arch, kernel), numbers in sorted(rows.items(), key=lambda r: (r[0][1], ARCHS.index(r[0][0]))):
            f.write(" ".join([arch, kernel, *map(str, numbers)]) + "\n")


def hold(rows, table, registers, some):
    bad = []
    for (arch, kernel), numbers in sorted(rows.items()):
        known = table.get((arch, kernel))
        if not known:
            bad.append(f"{kernel} on sm_{arch} is not in {TABLE}")
            continue
        for i, field in enumerate(FIELDS):
            if numbers[i] > known[i] and (i > 0 or registers):
                bad.append(f"{kernel} on sm_{arch}: {field} {known[i]} -> {numbers[i]}")
    seen = {arch for arch, _ in rows}
    gone = [k for k in table if k[0] in seen and k not in rows and not some]
    bad += [f"{kernel} on sm_{arch} is in {TABLE} but not in the sources" for arch, kernel in gone]
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("logs", nargs="*")
    p.add_argument("--some", action="store_true")
    p.add_argument("--all", action="store_true")
    p.add_argument("--write", action="store_true")
    a = p.parse_args()
    if a.write and not a.all:
        sys.exit("--write needs --all: the table is of all architectures")
    text = compile_all() if a.all else "".join(open(f).read() for f in a.logs)
    if m := SERIAL.search(text):
        sys.exit(f"the assembler serializes products of a warpgroup: {m[0]}")
    rows = parse(text)
    if not rows:
        sys.exit("no kernel in these logs: were they written by nvcc with -Xptxas -v?")
    if a.write:
        write_table(rows)
        print(f"  wrote {TABLE}: {len(rows)} rows")
        return
    table, compiler = read_table()
    same = version() == compiler
    bad = hold(rows, table, same, a.some)
    for line in bad:
        print(f"  {line}")
    if bad:
        sys.exit(f"{len(bad)} differences; if they are meant: tools/ptxas.py --all --write, and say why in the commit")
    spills = sum(1 for n in rows.values() if any(n[1:]))
    print(f"  ok    {len(rows)} kernels as in {TABLE}{'' if same else ' (registers not held: another nvcc)'}, "
          f"{spills} with a stack frame or spills")


if __name__ == "__main__":
    main()
