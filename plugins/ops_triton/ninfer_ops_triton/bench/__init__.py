"""``ninfer bench``: what the public engine does here, and how far it is from the floor."""
