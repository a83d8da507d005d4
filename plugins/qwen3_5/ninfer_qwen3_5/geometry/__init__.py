"""Models of a real geometry without a checkpoint: random weights, made where they will stay."""
