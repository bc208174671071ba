"""What a model needs of an engine's memory, by its config: an estimate before a measured run. Pure but for `model`."""
