"""Pure modules, tensors in and tensors out; one idea a file."""
