"""Speculative decoding for NInfer with a DFlash block drafter."""
