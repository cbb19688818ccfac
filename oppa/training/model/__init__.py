"""Define the modules of the embedded models, with tensor-parallel layers; everything here imports torch alone."""
