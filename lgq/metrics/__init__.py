"""Quality of reconstructions, codebooks and generators: one metric per file."""
