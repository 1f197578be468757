"""Values, tensors and calls: the floor of the house, which imports nothing of the rooms above."""
