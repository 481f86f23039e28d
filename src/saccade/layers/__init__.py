"""Pure modules, tensors in and tensors out; one idea a file."""

import timm  # noqa: F401  before any of them: with it come the backbones, which are made of these
