"""Privacy of rows and of persons: noise of each silo's own, in every step."""
