"""A folder of models for NInfer."""
