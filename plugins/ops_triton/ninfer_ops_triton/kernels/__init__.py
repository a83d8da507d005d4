"""Triton kernels: device code alone, one subject a file. The modules above launch them."""
