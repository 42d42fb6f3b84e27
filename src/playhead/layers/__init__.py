"""The parts a decoder is made of. Each computes over packed tokens and can be captured."""
