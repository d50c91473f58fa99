"""Training: losses, trainers, and the run directory that survives whatever stops them."""
