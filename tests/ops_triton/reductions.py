"""Prints how compiled kernels lay out what they reduce; started by test_reductions.py.

``python reductions.py PART [PART ...]``: for each launch of the entries with such a part in their
names, for sm_90, a line of JSON: the kernel's name and the operand types of its reductions, in
order, with the layouts spelt out. Two kernels that reduce alike add in the same order.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from compiling import collect, source
from triton.backends.compiler import GPUTarget

DEFINITION = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
REDUCTION = re.compile(r"\}\) : \((tensor<[^)]*)\) -> ")


def reductions(text: str) -> list[str]:
    """Operand types of every reduction in a kernel's GPU dialect."""
    layouts = dict(DEFINITION.findall(text))
    return [
        re.sub(r"#\w+", lambda name: layouts.get(name.group(), name.group()), operands)
        for operands in REDUCTION.findall(text)
    ]


def main(parts: list[str]) -> None:
    for _, entry in collect(parts):
        ast, options = source(entry)
        compiled = triton.compile(ast, target=GPUTarget("cuda", 90, 32), options=options)
        line = json.dumps([entry.kernel.__name__, reductions(compiled.asm["ttgir"])])
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
