"""HTTP server of NInfer."""
