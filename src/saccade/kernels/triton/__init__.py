"""GPU code in Triton, plain functions until a kernel is first used."""
