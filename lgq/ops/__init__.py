"""Mathematics as pure functions; modules elsewhere only hold state."""
