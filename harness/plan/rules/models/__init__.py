"""Rules of what a model is made of."""
