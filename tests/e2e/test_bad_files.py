"""Protects: a damaged, lying or misplaced file in a model directory ends the start with exit code 78 and one sentence that names the
file or the field, at once and without partial service; what is only unusual serves."""
import contextlib
import hashlib
import json
import mmap
import os
import random
import shutil
import subprocess

import pytest

from conftest import BUILD, MODEL, ROOT, wait_for


def text(name, change):
    return lambda d: (d / name).write_text(change((d / name).read_text()))


def keys(name, **more):
    return text(name, lambda s: json.dumps({**json.loads(s), **more}))


def raw(name, more):
    """Members that Python's json would not write, at the end of an object."""
    return text(name, lambda s: s.rstrip().rstrip("}") + "," + more + "}")


def rope_factor(value):
    """A number that JSON has no double for, where it is needed."""
    def spoil(d):
        keys("config.json", rope_parameters={"rope_type": "linear", "factor": float("nan")})(d)
        text("config.json", lambda s: s.replace("NaN", value))(d)
    return spoil


def fifo(name):
    def spoil(d):
        (d / name).unlink(missing_ok=True)
        os.mkfifo(d / name)
    return spoil


def folder(name):
    def spoil(d):
        (d / name).unlink(missing_ok=True)
        (d / name).mkdir()
    return spoil


def tokens(change):
    def spoil(s):
        o = json.loads(s)
        change(o)
        return json.dumps(o)
    return text("tokenizer.json", spoil)


def index(content):
    def spoil(d):
        (d / "model.safetensors").rename(d.parent / "outside.safetensors")
        (d / "model.safetensors.index.json").write_text(content)
    return spoil


def cut(size):
    return lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:size])


def header(change):
    """Changes the header of the weights; `change` gets it and the name of its first tensor."""
    def spoil(d):
        data = (d / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        o = json.loads(data[8:8 + size])
        change(o, next(k for k in o if k != "__metadata__"))
        new = json.dumps(o).encode()
        (d / "model.safetensors").write_bytes(len(new).to_bytes(8, "little") + new + data[8 + size:])
    return spoil


def far_token(o):
    o["added_tokens"].append({"id": 100000, "content": "<far>", "special": True, "single_word": False,
                              "lstrip": False, "rstrip": False, "normalized": False})


FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
         "model.safetensors", "special_tokens_map.json"]
INDEX = "model.safetensors.index.json"
ROPE = '"rope_parameters": {"rope_type": "%s", "rope_theta": 10000.0, "factor": %s}'
CASES = {
    **{f"fifo {n}": (fifo(n), [n, "not a regular file"]) for n in FILES},
    **{f"folder {n}": (folder(n), [n, "not a regular file"]) for n in FILES},
    **{f"empty {n}": (text(n, lambda s: ""), [n]) for n in FILES[:4]},
    **{f"half {n}": (text(n, lambda s: s[:len(s) // 2]), [n, "line", "download it again"]) for n in FILES[:4]},
    "key twice": (text("config.json", lambda s: s.replace('"hidden_size"', '"a": 1,\n"a": 2,\n"hidden_size"', 1)), ["config.json: line", "duplicate"]),
    "temperature": (keys("generation_config.json", temperature=-1), ["generation_config.json", "temperature"]),
    "eos of generation": (keys("generation_config.json", eos_token_id=[2, 999999]), ["eos_token_id", "4127"]),
    "eos": (keys("config.json", eos_token_id=999999), ["eos_token_id", "4127"]),
    "bos": (keys("config.json", bos_token_id=-7), ["bos_token_id"]),
    "fewer rows": (keys("config.json", vocab_size=4000), ["model.embed_tokens.weight", "4000"]),
    "NaN": (raw("config.json", '"partial_rotary_factor": NaN'), ["config.json", "partial_rotary_factor", "NaN"]),
    "infinite factor": (rope_factor("Infinity"), ["config.json", "factor must be", "Infinity"]),
    "overflowing factor": (rope_factor("1e999"), ["config.json", "factor must be", "1e999"]),
    "factor as text": (keys("config.json", rope_parameters={"rope_type": "linear", "factor": "4"}), ["config.json", "factor"]),
    "negative factor": (keys("config.json", rope_parameters={"rope_type": "yarn", "factor": -4.0}), ["config.json", "factor"]),
    "no factor": (keys("config.json", rope_parameters={"rope_type": "dynamic"}), ["config.json", "factor"]),
    "unknown rope": (keys("config.json", rope_parameters={"rope_type": "spiral"}), ["config.json", "spiral", "longrope"]),
    "huge stretch": (keys("config.json", rope_parameters={"rope_type": "dynamic", "factor": 1e6}), ["config.json", "factor"]),
    "vision": (keys("config.json", architectures=["LlavaForConditionalGeneration"]), ["config.json", "LlavaForConditionalGeneration", "README"]),
    "token id too large": (tokens(lambda o: o["model"]["vocab"].update(zzzq=1 << 30)), ["tokenizer.json", "zzzq"]),
    "token id below 0": (tokens(lambda o: o["model"]["vocab"].update(zzzq=-1)), ["tokenizer.json", "zzzq"]),
    "token id twice": (tokens(lambda o: o["model"]["vocab"].update(zzzq=5)), ["tokenizer.json", "zzzq", "twice"]),
    "token id above the model's": (tokens(far_token), ["100000", "vocab_size", "4128"]),
    "unknown tokenizer": (tokens(lambda o: o["model"].update(type="WordLevel")), ["tokenizer.json", "WordLevel", "Unigram"]),
    "merge of nothing": (tokens(lambda o: o["model"]["merges"].append("zzzq zzzq")), ["tokenizer.json", "model.merges"]),
    "template that does not parse": (text("chat_template.jinja", lambda s: "a\n{% for x in %}"), ["template", "line 2 column"]),
    "template that includes itself": (text("chat_template.jinja", lambda s: "{% include 'chat_template.jinja' %}"), ["include"]),
    "template that extends itself": (text("chat_template.jinja", lambda s: "{% extends 'chat_template.jinja' %}"), ["extends"]),
    "template too long": (text("chat_template.jinja", lambda s: "x" * 5000000), ["template", "4194304"]),
    "template that is no text": (lambda d: (d / "chat_template.jinja").write_bytes(b"\xff\xfe{{ x }}"), ["template", "UTF-8"]),
    "path out of the directory": (index('{"weight_map": {"a": "../outside.safetensors"}}'), [INDEX, "../outside.safetensors"]),
    "path from the root": (index('{"weight_map": {"a": "/etc/passwd"}}'), [INDEX, "/etc/passwd"]),
    "shard that is not there": (index('{"weight_map": {"a": "model-00001.safetensors"}}'), ["model-00001.safetensors"]),
    "index of another form": (index('{"weight_map": []}'), [INDEX, "weight_map"]),
    "empty index": (index('{"weight_map": {}}'), [INDEX]),
    "fifo index": (lambda d: (index("")(d), fifo(INDEX)(d)), [INDEX, "not a regular file"]),
    **{f"cut at {n}": (cut(n), ["model.safetensors", "download it again"]) for n in (0, 4, 8, 100, 500000)},
    "overlapping": (header(lambda h, t: h[t].update(data_offsets=[0, 8])), ["model.safetensors", "damaged"]),
    "past the end": (header(lambda h, t: h[t].update(data_offsets=[0, 1 << 60])), ["model.safetensors", "truncated"]),
    "shape that overflows": (header(lambda h, t: h[t].update(shape=[1 << 40, 1 << 40])), ["model.safetensors", "shape"]),
    "negative shape": (header(lambda h, t: h[t].update(shape=[-1, 2])), ["model.safetensors", "shape"]),
    "unknown type": (header(lambda h, t: h[t].update(dtype="Q9")), ["model.safetensors", "Q9"]),
    "extra tensor": (header(lambda h, t: h.update({"zz.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})),
                     ["model.safetensors", "zz.weight"]),
    "header that lies": (lambda d: (d / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}" * 50),
                         ["model.safetensors", str(1 << 62)]),
}


def start(tmp_path, spoil):
    copy = tmp_path / "model"
    shutil.copytree(MODEL, copy)
    for f in copy.iterdir():
        f.chmod(0o644)
    spoil(copy)
    return subprocess.run([BUILD / "evenkeel-server", "--model", copy, "--port", "0", "--dry-run"], capture_output=True,
                          text=True, timeout=60)


@pytest.mark.parametrize("name", CASES)
def test_refused(tmp_path, name):
    spoil, says = CASES[name]
    done = start(tmp_path, spoil)
    assert done.returncode == 78, (done.returncode, done.stderr)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in says:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_fault_has_the_line_of_the_file(tmp_path, name):
    """The server parses what another process hands it of the file, and names the line of the file."""
    def spoil(d):
        lines = json.dumps(json.loads((d / name).read_text()), indent=1).splitlines()
        lines[30:30] = ["x"]
        (d / name).write_text("\n".join(lines))
    done = start(tmp_path, spoil)
    assert done.returncode == 78 and f"{name}: line 31: " in done.stderr, done.stderr


ODD_NAMES = [b"tab\tand\nline", b"\x1b[2J\x07", b"\xff\x80"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_with_an_odd_name(tmp_path, name):
    """Its name may have any byte; a fault of its files is one line all the same."""
    folder = os.path.join(os.fsencode(tmp_path), name)
    shutil.copytree(os.fsencode(MODEL), folder)
    args = [BUILD / "evenkeel-server", "--port", "0", "--dry-run", "--model", folder]
    assert subprocess.run(args, capture_output=True, timeout=60).returncode == 0
    os.unlink(os.path.join(folder, b"config.json"))
    done = subprocess.run(args, capture_output=True, timeout=60)
    assert done.returncode == 78 and b"config.json: there is no such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not any(c in done.stderr[:-1] for c in b"\t\n\x07\x1b"), done.stderr


SMALL = ["--threads", "1", "--kv-cache-memory-bytes", str(32 << 20)]


def writable(tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(MODEL, copy)
    for f in copy.iterdir():
        f.chmod(0o644)
    return copy, (copy / "model.safetensors").stat().st_size


def says_that_it_was_cut(text):
    return "to do harm" not in text and any(word in text for word in (
        "was cut short while it was read, or could not be read",  # while it was mapped
        "its files were changed while they were read",  # within the last page, which the kernel fills with zeros
        "its files are not those that the server has read", "is not the file that the list of checksums means",
        "model.safetensors: is not the file that it was", "truncated", "too few for a header"))


def started_over(tmp_path, copy, flags, reader, change):
    """What a server says, and its code, when `change` comes as its files of weights were mapped for the `reader`-th time."""
    library, state = tmp_path / "cut_file.so", tmp_path / "shared"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/cut_file.c"], check=True)
    state.write_bytes(bytes(4096))
    with open(state, "r+b") as f, mmap.mmap(f.fileno(), 4096) as shared, open(tmp_path / "log", "w+b") as log:
        p = subprocess.Popen([BUILD / "evenkeel-server", "--model", copy, "--port", "0", *SMALL, *flags], stdout=log, stderr=log,
                             env={**os.environ, "LD_PRELOAD": str(library), "CUT_SHARED": str(state), "CUT_AT": str(reader)})
        try:
            wait_for("it is mapped", lambda: shared[4] or p.poll() is not None, 60)
            assert shared[4], (tmp_path / "log").read_text()
            change()
            shared[8] = 1
            code = p.wait(60)
        finally:
            p.kill()
            p.wait()
    return (tmp_path / "log").read_text(errors="replace"), code


def list_sums(copy):
    (copy / "SHA256SUMS").write_text(f"{hashlib.sha256((copy / 'model.safetensors').read_bytes()).hexdigest()}  model.safetensors\n")


@pytest.mark.parametrize("flags, reader", [([], 1), ([], 2), (["--weights-checksums", "auto"], 2), (["--engine-process"], 3)],
                         ids=["child", "server", "checksums", "engine"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_that_are_cut_while_they_are_read(tmp_path, flags, reader, seed):
    """Whichever process reads a mapped file when it becomes shorter, the end is a sentence and no signal."""
    copy, size = writable(tmp_path)
    if "auto" in flags:
        list_sums(copy)
    length = [0, random.Random(seed).randrange(size), random.Random(seed).randrange(size), size - 1][seed]
    said, code = started_over(tmp_path, copy, flags, reader, lambda: os.truncate(copy / "model.safetensors", length))
    assert code == 78 and says_that_it_was_cut(said), (code, said)


@pytest.mark.parametrize("flags", [[], ["--engine-process"], ["--no-sandbox"], ["--engine-process", "--no-sandbox"]], ids="-".join)
def test_weights_that_are_replaced_while_they_are_read(tmp_path, flags):
    """By others of the same shapes, whose checksum nobody has taken: they are not served."""
    copy, size = writable(tmp_path)
    list_sums(copy)
    was = (copy / "model.safetensors").read_bytes()
    (tmp_path / "other").write_bytes(was[:size // 2] + bytes(size - size // 2))
    said, code = started_over(tmp_path, copy, flags, 1 if "--no-sandbox" in flags else 2,
                              lambda: os.replace(tmp_path / "other", copy / "model.safetensors"))
    assert code == 78 and says_that_it_was_cut(said) and "Serving" not in said, (code, said)


@pytest.mark.parametrize("seed", range(6))
def test_weights_that_are_cut_at_any_moment(tmp_path, seed):
    """Some moment of a start; after it nothing reads the file any more."""
    copy, size = writable(tmp_path)
    draw = random.Random(seed)
    with open(tmp_path / "log", "w+b") as log:
        p = subprocess.Popen([BUILD / "evenkeel-server", "--model", copy, "--port", "0", *SMALL, *([] if seed % 2 else ["--engine-process"])],
                             stdout=log, stderr=log)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(draw.uniform(0, 0.3))
            os.truncate(copy / "model.safetensors", draw.randrange(size))
            wait_for("an end, or a server", lambda: p.poll() is not None or "Serving" in (tmp_path / "log").read_text(errors="replace"), 60)
            p.terminate()
            code = p.wait(60)
        finally:
            p.kill()
            p.wait()
    said = (tmp_path / "log").read_text(errors="replace")
    assert code == 0 or (code == 78 and says_that_it_was_cut(said)), (code, said)


def hole(o):
    """An id that no token has, as pruned vocabularies leave them."""
    name = next(k for k, i in o["model"]["vocab"].items() if i == 3000)
    del o["model"]["vocab"][name]
    def kept(m):
        sides = m if isinstance(m, list) else m.split(" ")
        return name not in sides and name != "".join(sides)
    o["model"]["merges"] = [m for m in o["model"]["merges"] if kept(m)]


HUGE = '"model_max_length": 1000000000000000019884624838656, "cleanup": NaN, "limit": [-Infinity, 1e999]'
SERVES = {
    "hole": tokens(hole), "fifo tekken.json": fifo("tekken.json"), "as it is": lambda d: None,
    # what transformers and Python write in fields that nobody reads
    **{f"numbers in {n}": raw(n, HUGE) for n in FILES[:4]},
    "numbers in special_tokens_map.json": lambda d: (d / "special_tokens_map.json").write_text("{" + HUGE + "}"),
}


@pytest.mark.parametrize("name", SERVES)
def test_serves(tmp_path, name):
    done = start(tmp_path, SERVES[name])
    assert done.returncode == 0, done.stderr
