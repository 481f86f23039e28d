"""A trained model outside of training: exported, asked about files, served."""
