"""What a model did with a picture: nominations, slots, attention, similarity of layers, places that decide."""
