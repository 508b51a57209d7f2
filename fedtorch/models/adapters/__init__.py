"""Small matrices beside a model's own, which are trained and sent while the model stays as it is."""
