"""Triton kernels for NInfer's op contracts."""
