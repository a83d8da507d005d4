"""Speculative decoding for NInfer with the checkpoint's own MTP head."""
