"""The demo model: its artifact, and generated conversations that it can answer."""
