"""Images and video for NInfer."""
