"""Compile every kernel for an architecture without a GPU, and print what each uses, as JSON.

    python compile_offline.py 90

It is a program of its own, because the tests import Triton with its interpreter. It compiles the variants
that `lgq.ops.fused` launches: all sizes of blocks, with all gradients and with those of LGQ.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lgq.ops import fused, kernels
from lgq.ops.numerics import min_log_weight

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
FLOOR = {"FLOOR": min_log_weight(torch.float32)}
ALL = {"OUTPUT": True, "USAGE": True, "PURITY": True, "ENTROPY": True}
OF_LGQ = ALL | {"ENTROPY": False}
VARIANTS = [
    ("search", {}),
    ("scan", FLOOR),
    ("usage", FLOOR),
    ("to_z", FLOOR | ALL),
    ("to_z", FLOOR | OF_LGQ),
    ("to_codes", FLOOR | ALL | {"SOFT": False}),
    ("to_codes", FLOOR | ALL | {"SOFT": True}),
    ("to_codes", FLOOR | OF_LGQ | {"SOFT": True}),
]
PLANES, OTHER_TYPES = ("x", "y", "g"), {"indices": "*i64", "n": "i32", "k": "i32", "chunk": "i32"}
INSTRUCTIONS = r"wgmma\.mma_async|\bmma\.sync|tcgen05\.mma"


def compiled(name, constants, capability, channels):
    kernel = getattr(kernels, name)
    tile = fused.TILES[divmod(capability, 10)]
    constants = constants | fused.block_constants(tile, channels)
    if not constants.get("ENTROPY", True):
        constants |= {"grad_entropy": None}
    types = {}
    for argument in kernel.arg_names:
        if argument in constants:
            types[argument] = "constexpr"
        elif argument in PLANES:
            types[argument] = "*bf16"
        elif argument == "indices" and name in ("search", "scan"):
            types[argument] = "*i32"
        else:
            types[argument] = OTHER_TYPES.get(argument, "*fp32")
    # As at run time: torch allocates at multiples of 512 bytes, and the sizes are not specialized.
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, argument in enumerate(kernel.arg_names)
        if types[argument].startswith("*")
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def used(kernel, capability):
    ptx, cubin = kernel.asm["ptx"], kernel.asm["cubin"]
    architecture = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)[1]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.ptx").write_text(ptx)
        Path(folder, "kernel.cubin").write_bytes(cubin)
        assembler = TOOLS / ("ptxas-blackwell" if capability >= 100 else "ptxas")
        command = [assembler, "-v", f"--gpu-name={architecture}", "kernel.ptx", "-o", "kernel.out"]
        verbose = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
        command = [TOOLS / "cuobjdump", "--dump-resource-usage", "kernel.cubin"]
        usage = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    stack, stores, loads = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", verbose
    ).groups()
    registers, stack_in_cubin = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    return {
        "registers": int(registers),
        "spills": int(stack) + int(stores) + int(loads) + int(stack_in_cubin),
        "shared": kernel.metadata.shared,
        "tensor_memory": getattr(kernel.metadata, "tmem_size", 0) or 0,
        "matrix_instructions": len(re.findall(INSTRUCTIONS, ptx)),
        "atomics": len(re.findall(r"\b(?:atom|red)\.", ptx)),
    }


def main():
    capability = int(sys.argv[1])
    rows = []
    for channels in sorted({fused.padded(c) for c in range(1, fused.MOST_CHANNELS + 1)}):
        for name, constants in VARIANTS:
            if channels < fused.MOST_CHANNELS and not constants.get("ENTROPY", True):
                continue  # those with all gradients need more
            what = {"kernel": name, "channels": channels, "constants": constants}
            rows.append(what | used(compiled(name, constants, capability, channels), capability))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
