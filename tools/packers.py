"""Weights in the formats of quantized checkpoints, written by the libraries that define them: compressed-tensors, AutoGPTQ's and AutoAWQ's own
packers. For goldens.py --packers DIR, where `make check-hf` has put their sources; nothing of them is used that needs a GPU. Functions are as in
quantize.py: a matrix [rows, cols] to the tensors to store and the matrix that the library itself makes of them."""
import importlib.util
import logging
import pathlib
import sys
import types

import torch

import quantize

GROUP = 32  # what these packers can do with small matrices


def load(directory):
    """Makes the libraries known; only the modules that pack are imported."""
    directory = pathlib.Path(directory)
    sys.path[:0] = [str(directory / "compressed-tensors"), str(directory / "autoawq")]
    logging.disable(logging.WARNING)  # of extensions that need a GPU
    awq = types.ModuleType("awq")  # its own __init__ imports models of another transformers
    awq.__path__ = [str(directory / "autoawq/awq")]
    sys.modules["awq"] = awq
    linear = types.ModuleType("awq.modules.linear")  # likewise: layers that need a GPU
    linear.__path__ = [str(directory / "autoawq/awq/modules/linear")]
    sys.modules["awq.modules.linear"] = linear
    if not importlib.util.find_spec("accelerate"):
        sys.modules["accelerate"] = types.ModuleType("accelerate")  # imported beside, not used by a packer
    for name in ("qlinear_cuda", "qlinear_cuda_old"):
        path = directory / "auto-gptq/auto_gptq/nn_modules/qlinear" / (name + ".py")
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def linear_of(w):
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = w.clone()
    return linear


def compressed(form, **about):
    """By the scheme's own parameters, compressor and decompressor."""
    def function(w):
        from compressed_tensors.compressors.base import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
        args = QuantizationArgs(**about)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        if about["strategy"] in ("group", "tensor_group"):
            parts = w.reshape(w.shape[0], -1, about["group_size"])
        elif about["strategy"] == "tensor":
            parts = w.reshape(1, 1, -1)
        else:
            parts = w.reshape(w.shape[0], 1, -1)
        whole = generate_gparam(w.amin(), w.amax()) if about["strategy"] == "tensor_group" else None
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args, whole)
        if whole is None:
            scale = scale.to(torch.bfloat16).float()
        state = {"weight": w, "weight_scale": scale.reshape(1) if about["strategy"] == "tensor" else scale, "weight_zero_point": zero}
        if whole is not None:
            state["weight_global_scale"] = whole.reshape(1)
        cls = BaseCompressor.get_value_from_registry(form)
        stored = cls.compress(state, scheme)
        if whole is None:
            result = cls.decompress(stored, scheme)["weight"].float()
        else:  # decompress() computes in bfloat16
            from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
            from compressed_tensors.quantization.lifecycle.forward import dequantize
            numbers = unpack_fp4_from_uint8(stored["weight_packed"], *w.shape, dtype=torch.float32)
            result = dequantize(x_q=numbers, scale=stored["weight_scale"].float(), args=args, global_scale=whole, dtype=torch.float32)
        return {k: v.to(torch.bfloat16) if k == "weight_scale" and v.dtype == torch.float32 else v for k, v in stored.items()}, result
    config = {k: str(v) if k == "scale_dtype" else v for k, v in about.items()}
    return function, {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "quantization_status": "compressed",
                      "config_groups": {"group_0": {"targets": ["Linear"], "weights": config}}}


def gptq(bits, order=False):
    def function(w):
        name = "qlinear_cuda" if order else "qlinear_cuda_old"
        groups = torch.arange(w.shape[1]) // GROUP
        if order:
            groups = groups[torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(w.shape[1]))]
        _, zero, scale, _ = quantize.rounded(w, bits, GROUP, torch.float16, groups)
        layer = sys.modules[name].QuantLinear(bits, GROUP, w.shape[1], w.shape[0], False, weight_dtype=torch.float32)
        layer.pack(linear_of(w), scale.clone(), zero.clone(), groups.to(torch.int32))
        with torch.no_grad():
            result = layer(torch.eye(w.shape[1])).T.contiguous().float()
        return {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales.half(), "g_idx": layer.g_idx.to(torch.int32)}, result
    return function, {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": order, "sym": False}


def awq(w):
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm
    _, zero, scale, _ = quantize.rounded(w, 4, GROUP, torch.float16)
    layer = WQLinear_GEMM.from_linear(linear_of(w), 4, GROUP, scales=scale.T.contiguous(), zeros=zero.T.contiguous())
    result = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, GROUP).T.contiguous().float()
    return {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}, result


def formats():
    group = {"type": "int", "strategy": "group", "group_size": GROUP}
    return {
        "ct-w4a16": compressed("pack-quantized", num_bits=4, symmetric=True, **group),
        "ct-w4a16-zeros": compressed("pack-quantized", num_bits=4, symmetric=False, **group),
        "ct-w3a16-zeros": compressed("pack-quantized", num_bits=3, symmetric=False, **group),
        "ct-w8a16": compressed("pack-quantized", num_bits=8, symmetric=True, type="int", strategy="channel"),
        "ct-int8": compressed("int-quantized", num_bits=8, symmetric=True, type="int", strategy="channel"),
        "ct-int8-zeros": compressed("int-quantized", num_bits=8, symmetric=False, type="int", strategy="channel"),
        "ct-fp8": compressed("float-quantized", num_bits=8, symmetric=True, type="float", strategy="channel"),
        "ct-fp8-tensor": compressed("float-quantized", num_bits=8, symmetric=True, type="float", strategy="tensor"),
        "ct-nvfp4": compressed("nvfp4-pack-quantized", num_bits=4, symmetric=True, type="float", strategy="tensor_group",
                               group_size=16, scale_dtype=torch.float8_e4m3fn),
        "ct-mxfp4": compressed("mxfp4-pack-quantized", num_bits=4, symmetric=True, type="float", strategy="group", group_size=32,
                               scale_dtype=torch.uint8),
        "gptq-2": gptq(2), "gptq-3": gptq(3), "gptq-4": gptq(4), "gptq-8": gptq(8),
        "gptq-4-order": gptq(4, order=True),
        "awq-gemm": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}),
    }


# Whose sizes suit all: rows and columns in multiples of 32.
SIZES = {"hidden_size": 64, "intermediate_size": 96}
