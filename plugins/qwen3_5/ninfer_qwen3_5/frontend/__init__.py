"""Tokenizer, chat template and output channels of Qwen3.5 models."""

from ninfer_qwen3_5.frontend.open import open_frontend

__all__ = ["open_frontend"]
