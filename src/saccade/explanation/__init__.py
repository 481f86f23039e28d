"""What a model did with an image: nominations, slots, attention, similarity of layers, places that decide."""
