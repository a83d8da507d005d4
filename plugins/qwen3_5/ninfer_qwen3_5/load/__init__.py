"""From an artifact's bindings to parameters that the layers multiply by."""
