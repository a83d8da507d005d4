"""Qwen3.5 models for NInfer."""
