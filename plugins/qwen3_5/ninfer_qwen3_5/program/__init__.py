"""Sequences, stores and finite units of one model instance, behind the Program contract."""
