#!/usr/bin/env python3
"""Whether the assembler left the order in which instructions of a card are to run beside one another.

  tools/sass.py FATBIN...

Of each ek_attend_wgmma_* in an image for sm_90: in the loop over the context two products are begun, the first is waited for, and
between that wait and the next one lie the exponentials of a tile. If the assembler moves the second wait up, as it may, products and
exponentials take turns instead, and nothing but the time says so. Whether kernels that move rows do so 16 bytes at a time. And of the
kernels whose tiles flow through pipeline.cuh: one barrier for each, and operands that are read by ldmatrix, not word by word. Needs
nvdisasm: of the CUDA toolkit, or build/venv-sass (nvidia-cuda-nvdisasm).
"""
import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

KEYS = {"64": 128, "128": 128, "256": 64}  # positions of a tile by the head's size; a lane makes half as many weights

WIDE = {"ek_norm": (4, 2), "ek_rope": (8, 2)}  # loads and stores of 16 bytes at least, in the listing
STAGED = re.compile(r"ek_(gemm|fused64|heads)_b?f16$|ek_attend_tile_b?f16_\d+(_f8)?$|ek_rounded(64|128)(_f8)?$")  # see staged()


def nvdisasm():
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = glob.glob(os.path.join(home, "bin", "nvdisasm")) + glob.glob("build/venv-sass/lib/python3*/site-packages/nvidia/cu13/bin/nvdisasm")
    return found[0] if found else shutil.which("nvdisasm")


def images(path):
    """Those for sm_90, as files of their own."""
    with open(path, "rb") as f:
        data = f.read()
    at = data.find(b"\x7fELF")
    while at >= 0:
        after = data.find(b"\x7fELF", at + 4)
        if struct.unpack_from("<I", data, at + 0x30)[0] >> 8 & 0xFF == 90:
            yield data[at:after if after >= 0 else len(data)]
        at = after


def listing(tool, image):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(image)
        f.flush()
        return subprocess.run([tool, "-c", f.name], capture_output=True, text=True, check=True).stdout


def kernels(text):
    """name -> events in order: "0x1" or "0x0" for a wait that leaves so many groups under way, "product", "exp" """
    found, name = {}, None
    for line in text.splitlines():
        if m := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            name = m[1]
            found[name] = []
        elif name and (m := re.search(r"WARPGROUP\.DEPBAR\S* gsb0, (0x\d+)", line)):
            found[name].append(m[1])
        elif name and (m := re.search(r"HGMMA|MUFU\.EX2", line)):
            found[name].append("product" if m[0] == "HGMMA" else "exp")
    return found


def wide(text):
    """name -> loads and stores of 16 bytes in global memory, of those in WIDE"""
    found, name = {}, None
    for line in text.splitlines():
        if m := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            name = m[1] if m[1] in WIDE else None
            if name:
                found[name] = [0, 0]
        elif name and (m := re.search(r"(LDG|STG)\.E\.128", line)):
            found[name][m[1] == "STG"] += 1
    return found


def products(text):
    """name -> instructions of the longest loop with products, of kernels in STAGED"""
    found, name = {}, None
    for line in text.splitlines():
        if m := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            name, begun, code = m[1] if STAGED.match(m[1]) else None, {}, []
        elif name and (m := re.match(r"(\.L_x_\d+):", line)):
            begun[m[1]] = len(code)
        elif name and (m := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?) ?;", line)):
            code.append(m[1])
            to = re.search(r"BRA.*(\.L_x_\d+)", m[1])
            loop = code[begun[to[1]]:] if to and to[1] in begun else []
            if any("MMA" in c for c in loop) and len(loop) > len(found.get(name, [])):
                found[name] = loop
    return found


def staged(name, loop):
    """What is wrong with such a loop, which may be of several tiles. A cache of E4M3 is read 16 bytes at a time, expanded, and read
    again behind a barrier more."""
    expands = name.endswith("_f8") and name.startswith("ek_attend")
    tiles = max(1, sum("LDGDEPBAR" in c for c in loop))
    barriers = sum("BAR.SYNC" in c for c in loop) / tiles
    matrices = sum("LDSM" in c for c in loop)
    others = sum(re.search(r"\bLDS\b(?! RZ)" + r"(?!.*\.128)" * expands, c) is not None for c in loop)
    wrong = []
    if barriers != 1 + expands:
        wrong.append(f"{name}: {barriers:g} barriers a tile instead of {1 + expands}")
    if matrices == 0 or others > 0:
        wrong.append(f"{name}: {others} loads of words or vectors beside {matrices} of matrices")
    return wrong


def beside(events):
    """Exponentials between the wait that leaves a group under way and the next one; those behind that, before the next product."""
    if "0x1" not in events:
        return 0, 0
    rest = events[events.index("0x1") + 1:]
    end = rest.index("0x0")
    late = rest[end + 1:]
    return rest[:end].count("exp"), late[:late.index("product")].count("exp")


def main():
    tool = nvdisasm()
    if not tool:
        print("  skipped: no nvdisasm (of the CUDA toolkit, or pip's nvidia-cuda-nvdisasm): the order of products and exponentials is not looked at")
        return
    count, rows, tiles, bad = 0, 0, 0, []
    for path in sys.argv[1:]:
        for image in images(path):
            text = listing(tool, image)
            for name, has in sorted(wide(text).items()):
                rows += 1
                if has[0] < WIDE[name][0] or has[1] < WIDE[name][1]:
                    bad.append(f"{name}: {has[0]} loads and {has[1]} stores of 16 bytes; {WIDE[name]} were meant")
            for name, loop in sorted(products(text).items()):
                tiles += 1
                bad += staged(name, loop)
            for name, events in sorted(kernels(text).items()):
                m = re.match(r"ek_attend_wgmma_\w+_(\d+)$", name)
                if not m:
                    continue
                count += 1
                early, late = beside(events)
                if early < KEYS[m[1]] // 2 or late > 0:
                    bad.append(f"{name}: {early} exponentials beside the products, {late} behind them; {KEYS[m[1]] // 2} are a tile's")
    for line in bad:
        print(f"  {line}")
    if bad:
        sys.exit(f"{len(bad)} kernels are not as they were meant")
    print(f"  ok    {count} kernels compute beside their products, {rows} move 16 bytes at a time, {tiles} multiply tiles behind one barrier each")


if __name__ == "__main__":
    main()
