"""NVIDIA GPUs: lanes by cuda.core, arenas by cupy, tensors and captures by torch.

``open`` is the entry; importing any other module of the package imports torch.
"""
