"""Constrained output for NInfer through xgrammar."""
