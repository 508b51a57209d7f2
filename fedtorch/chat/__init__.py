"""Talk to a trained assistant."""
