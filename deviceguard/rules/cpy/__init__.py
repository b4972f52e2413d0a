"""CPY: copies of the model."""
