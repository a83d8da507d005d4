"""Store one element past the end of a tensor, for a memory checker to report."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def store_one(target, place) -> None:  # noqa: ANN001
    tl.store(target + place, 1.0)


def main() -> None:
    inside = torch.zeros(128, device="cuda")
    store_one[(1,)](inside, inside.numel())
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
