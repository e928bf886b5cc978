"""Weights in the formats of quantized checkpoints: for each a function that takes a matrix [rows,
cols] and gives the tensors to store and the matrix that they stand for. Plain rounding, made for
tests of readers and not for quality."""
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

GROUP = 16


def pack(values, bits):
    """Numbers of `bits` bits along the last dimension into int32 words, lowest bits first."""
    rows, cols = values.shape
    words = torch.zeros(rows, (cols * bits + 31) // 32, dtype=torch.int64)
    for i in range(cols):
        at = i * bits
        words[:, at // 32] |= (values[:, i].long() << (at % 32)) & 0xFFFFFFFF
        if at % 32 + bits > 32:
            words[:, at // 32 + 1] |= values[:, i].long() >> (32 - at % 32)
    return torch.where(words >= 2 ** 31, words - 2 ** 32, words).to(torch.int32)


def rounded(w, bits, group, scale_type, groups=None):
    """Asymmetric: numbers and zeros from 0 to 2^bits - 1, scales [rows, groups] and the result."""
    rows, cols = w.shape
    groups = torch.arange(cols) // group if groups is None else groups
    count, most = int(groups.max()) + 1, 2 ** bits - 1
    scale, zero = torch.ones(rows, count), torch.zeros(rows, count)
    for g in range(count):
        part = w[:, groups == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scale[:, g] = ((high - low) / most).clamp(min=1e-4).to(scale_type).float()
        zero[:, g] = torch.round(-low / scale[:, g]).clamp(1, most)
    by_col, zeros = scale[:, groups], zero[:, groups]
    number = torch.round(w / by_col + zeros).clamp(0, most)
    return number, zero, scale, (number - zeros) * by_col


def w8a8(w, symmetric=True):
    scale = (w.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    number = torch.round(w / scale.float()).clamp(-128, 127)
    if symmetric:
        return {"weight": number.to(torch.int8), "weight_scale": scale}, number * scale.float()
    number, zero, scale, result = rounded(w, 8, w.shape[1], torch.bfloat16)
    return {"weight": (number - 128).to(torch.int8), "weight_scale": scale.to(torch.bfloat16),
            "weight_zero_point": (zero - 128).to(torch.int8)}, result


def packed(w, bits=4, symmetric=True, act_order=False):
    groups = torch.arange(w.shape[1]) // GROUP
    if act_order:
        groups = groups.flip(0).roll(5)
    number, zero, scale, result = rounded(w, bits, GROUP, torch.bfloat16, groups)
    if symmetric:
        zero = torch.full_like(zero, 2 ** (bits - 1))
        by_col = scale[:, groups]
        number = torch.round(w / by_col + 2 ** (bits - 1)).clamp(0, 2 ** bits - 1)
        result = (number - 2 ** (bits - 1)) * by_col
    tensors = {"weight_packed": pack(number, bits), "weight_scale": scale.to(torch.bfloat16),
               "weight_shape": torch.tensor(w.shape)}
    if not symmetric:
        tensors["weight_zero_point"] = pack(zero.T, bits).T.contiguous()
    if act_order:
        tensors["weight_g_idx"] = groups.to(torch.int32)
    return tensors, result


def gptq(w, bits=4, group=GROUP, act_order=False, less=1):
    group = group if group > 0 else w.shape[1]
    groups = torch.arange(w.shape[1]) // group
    if act_order:
        groups = groups.flip(0).roll(3)
    number, zero, scale, result = rounded(w, bits, group, torch.float16, groups)
    return {"qweight": pack(number, bits).T.contiguous(), "scales": scale.half().T.contiguous(),
            "qzeros": pack(zero.T - less, bits), "g_idx": groups.to(torch.int32)}, result


def awq(w):
    number, zero, scale, result = rounded(w, 4, GROUP, torch.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def columns(m):
        return pack(m.reshape(m.shape[0], -1, 8)[:, :, order].reshape(m.shape[0], -1), 4)

    return {"qweight": columns(number.T), "scales": scale.half().T.contiguous(),
            "qzeros": columns(zero.T)}, result


def fp8(w, scales="block", name="weight_scale_inv", block=(20, 24)):
    rows, cols = w.shape
    if scales == "tensor":
        block = (rows, cols)
    elif scales == "row":
        block = (1, cols)
    scale = torch.zeros((rows + block[0] - 1) // block[0], (cols + block[1] - 1) // block[1])
    number, result = torch.zeros(rows, cols), torch.zeros(rows, cols)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scale[i, j] = (w[at].abs().max() / 448).to(torch.bfloat16).float()
            number[at] = (w[at] / scale[i, j]).clamp(-448, 448).to(torch.float8_e4m3fn).float()
            result[at] = number[at] * scale[i, j]
    stored = scale.reshape(1) if scales == "tensor" else scale
    return {"weight": number.to(torch.float8_e4m3fn), name: stored}, result


def fp8_joined(w):
    """Experts as one tensor stay one, as transformers' FP8Experts has them."""
    if w.dim() == 2:
        return fp8(w)
    each = [fp8(m, name="_scale_inv") for m in w]
    return {"": torch.stack([e["weight"] for e, _ in each]), "_scale_inv": torch.stack([e["_scale_inv"] for e, _ in each])}, \
        torch.stack([result for _, result in each])


def modelopt(w):
    """One scale without a dimension, and one of the inputs, which float32 does not round."""
    tensors, result = fp8(w, "tensor", "weight_scale")
    scale = tensors["weight_scale"].reshape(())
    return {**tensors, "weight_scale": scale, "input_scale": torch.tensor(0.01)}, result


def nvfp4(w):
    """As ModelOpt: E2M1 in bytes, E4M3 scales for 16 columns, and a number for the matrix."""
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    whole = w.abs().max() / (6 * 448)
    parts = w.reshape(w.shape[0], -1, 16)
    scale = (parts.abs().amax(-1) / 6 / whole).clamp(min=2 ** -9).to(torch.float8_e4m3fn)
    scaled = parts / (scale.float() * whole).unsqueeze(-1)
    code = (scaled.abs().unsqueeze(-1) - numbers).abs().argmin(-1)
    result = (numbers[code] * scaled.sign() * (scale.float() * whole).unsqueeze(-1)).reshape(w.shape)
    code = (code + 8 * (scaled < 0)).reshape(w.shape)
    return {"weight": (code[:, 0::2] + 16 * code[:, 1::2]).to(torch.uint8), "weight_scale": scale,
            "weight_scale_2": whole.reshape(()), "input_scale": torch.tensor(0.01)}, result


def joined(form, name):
    """All experts [experts, rows, cols] in one tensor of each kind, called after the first one."""
    def function(p):
        if p.dim() < 3:
            return form(p)
        each = [form(w) for w in p]
        return {name(part): torch.stack([tensors[part] for tensors, _ in each]) for part in each[0][0]}, \
            torch.stack([result for _, result in each])
    return function


def compressed(form, bits, kind="int", **weights):
    about = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "channel", **weights}
    group = {"targets": ["Linear"], "weights": about}
    if form == "int-quantized":
        group["input_activations"] = {"num_bits": 8, "type": "int", "symmetric": True,
                                      "strategy": "token", "dynamic": True}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "quantization_status": "compressed", "config_groups": {"group_0": group}}


GROUPED = {"strategy": "group", "group_size": GROUP}

def mxfp4(p):
    """Experts [experts, in, out] as blocks of 32 numbers of four bits with a power of two, and what
    transformers makes of them."""
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    w = p.transpose(1, 2).reshape(p.shape[0], p.shape[2], p.shape[1] // 32, 32)
    power = torch.floor(torch.log2(w.abs().amax(-1, keepdim=True).clamp(min=1e-30))) - 2
    scaled = w / 2 ** power
    code = (scaled.abs().unsqueeze(-1) - numbers).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = (code[..., 0::2] + 16 * code[..., 1::2]).to(torch.uint8)
    scales = (power.squeeze(-1) + 127).to(torch.uint8)
    return {"blocks": blocks, "scales": scales}, convert_moe_packed_tensors(
        blocks, scales, dtype=torch.float32)


# name of a case: (function, quantization_config)
FORMATS = {
    "w8a8": (w8a8, compressed("int-quantized", 8)),
    "w8a8-zeros": (lambda w: w8a8(w, symmetric=False), compressed("int-quantized", 8, symmetric=False)),
    "w4a16": (packed, compressed("pack-quantized", 4, **GROUPED)),
    "w4a16-order": (lambda w: packed(w, symmetric=False, act_order=True),
                    compressed("pack-quantized", 4, symmetric=False, actorder="group", **GROUPED)),
    "w3a16": (lambda w: packed(w, bits=3, symmetric=False),
              compressed("pack-quantized", 3, symmetric=False, **GROUPED)),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}),
    "gptq-order": (lambda w: gptq(w, act_order=True),
                   {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}),
    "gptq-v2": (lambda w: gptq(w, bits=8, group=-1, less=0),
                {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False,
                 "checkpoint_format": "gptq_v2"}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm",
                  "zero_point": True}),
    "fp8-block": (fp8, {"quant_method": "fp8", "weight_block_size": [20, 24],
                        "activation_scheme": "dynamic"}),
    "fp8-joined": (fp8_joined, {"quant_method": "fp8", "weight_block_size": [20, 24], "activation_scheme": "dynamic"}),
    "fp8-tensor": (lambda w: fp8(w, "tensor", "weight_scale"), {"quant_method": "fp8"}),
    "modelopt": (modelopt, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}),
    "w4a16-joined": (joined(lambda w: packed(w, symmetric=False), lambda part: part.removeprefix("weight")),
                     compressed("pack-quantized", 4, symmetric=False, **GROUPED)),
    "w8a8-joined": (joined(w8a8, lambda part: "." + part), compressed("int-quantized", 8)),
    "mxfp4": (mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}),
    "fp8-row": (lambda w: fp8(w, "row", "weight_scale"), compressed("float-quantized", 8, "float")),
}


# Names of parameters; those of a hybrid's gates and convolutions stay as they are.
PRODUCTS = ("_proj.weight", "_proj_with_mqa.weight", "in_proj_qkv.weight", "in_proj_z.weight",
            "in_proj_qkvz.weight", "feed_forward.w1.weight", "feed_forward.w2.weight", "feed_forward.w3.weight",
            "shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight", "per_layer_input_gate.weight",
            "per_layer_projection.weight")


def matrices(name, p, how, turned):
    """(stored name, view) of the matrices of a parameter: one, or those of all experts, which may lie transposed."""
    if turned and p.dim() == 3:
        p = p.transpose(1, 2)
    if how == "mxfp4":
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            yield name + "_", p
    elif how.endswith("-joined") and p.dim() == 3 and "experts" in name:
        yield name, p
    elif name.endswith(PRODUCTS):
        yield name.removesuffix("weight"), p
    elif name.endswith("experts.gate_up_proj"):
        half = p.shape[1] // 2
        for e in range(p.shape[0]):
            yield name.replace("gate_up_proj", f"{e}.gate_proj."), p[e, :half]
            yield name.replace("gate_up_proj", f"{e}.up_proj."), p[e, half:]
    elif name.endswith(("experts.down_proj", "experts.up_proj")):
        kind = name.rsplit(".", 1)[1]
        for e in range(p.shape[0]):
            yield name.removesuffix(kind) + f"{e}.{kind}.", p[e]


def apply(model, how):
    """Quantizes the products of all layers in place; {stored name: tensor} to save instead of the parameters named."""
    stored, gone = {}, []
    turned = model.config.model_type.startswith("llama4")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "visual." in name or "vision" in name:
                continue  # as published: what sees stays as it is
            for prefix, matrix in matrices(name, p, how, turned):
                tensors, result = FORMATS[how][0](matrix.float().contiguous())
                matrix.copy_(result)
                for part, tensor in tensors.items():
                    stored[prefix + part] = tensor.contiguous()
                gone.append(name)
    return stored, set(gone)
