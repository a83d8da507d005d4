"""Devices behind one interface: lanes, arenas, pinned memory, graphs.

``base`` is the interface, ``spec`` reads what a user wrote and settles it, ``probe`` asks for a GPU
once, ``cpu`` implements the interface over torch CPU tensors and ``cuda`` over an NVIDIA GPU;
``flags`` waits for what a device writes.
"""
